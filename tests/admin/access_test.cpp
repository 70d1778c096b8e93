// SPDX-License-Identifier: Apache-2.0
// Who may what, by numbers alone, and the token file.
#include "scheduler/admin/access.h"

#include "base/hash.h"
#include "base/unique_fd.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {
namespace {

using policies::Role;

http::Request from_peer(uint32_t uid, uint32_t gid, std::vector<uint32_t> groups = {}) {
    http::Request request;
    request.method = "PUT";
    request.path = "/v1/policy";
    request.credentials = PeerCredentials{77, uid, gid, std::move(groups)};
    return request;
}

http::Request with_token(const std::string& token) {
    http::Request request;
    request.method = "GET";
    request.path = "/v1/node";
    request.address = "127.0.0.1:4711";
    request.headers.set("authorization", "bearer " + token);
    return request;
}

class Folder : public testing::Test {
  protected:
    Folder() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "berth-access-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
    }
    ~Folder() override { std::filesystem::remove_all(folder_); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    std::string write(const std::string& text, int mode = 0600) const {
        std::string path = folder_ + "/tokens";
        EXPECT_TRUE(write_file_atomic(path, text, mode));
        EXPECT_EQ(::chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
        return path;
    }
    std::string folder_;
};

Access access_of(const policies::NodeSpec& node) {
    auto access = Access::of(node, PeerPolicy{5000, "berth", 600});
    EXPECT_TRUE(access) << access.error().message;
    return std::move(*access);
}

TEST(Access, WithoutRulesRootAndOwnUserAdministerTheGroupOperatesAndOthersHaveNoRole) {
    Access access = access_of({});
    EXPECT_EQ(access.identify(from_peer(0, 0)).role, Role::kAdmin);
    EXPECT_EQ(access.identify(from_peer(5000, 5000)).role, Role::kAdmin);
    EXPECT_EQ(access.identify(from_peer(1, 600)).role, Role::kOperator);
    EXPECT_EQ(access.identify(from_peer(1, 1, {7, 600})).role, Role::kOperator);
    EXPECT_EQ(access.identify(from_peer(1, 1)).role, std::nullopt);
}

TEST(Access, RulesReplaceTheStandardOnesAndTheHighestCounts) {
    policies::NodeSpec node;
    node.access = {{Role::kOperator, {"1001"}, {}},
                   {Role::kViewer, {"1001", "1002"}, {"700"}},
                   {Role::kAdmin, {}, {"701"}}};
    Access access = access_of(node);
    EXPECT_EQ(access.identify(from_peer(1001, 1)).role, Role::kOperator);
    EXPECT_EQ(access.identify(from_peer(1002, 1)).role, Role::kViewer);
    EXPECT_EQ(access.identify(from_peer(1002, 1, {701})).role, Role::kAdmin);
    EXPECT_EQ(access.identify(from_peer(9, 700)).role, Role::kViewer);
    EXPECT_EQ(access.identify(from_peer(9, 600)).role, std::nullopt) << "the node's group alone";
    EXPECT_EQ(access.identify(from_peer(0, 0)).role, Role::kAdmin) << "root always";
}

TEST(Access, ARefusalSaysWhoWhichRoleWhichItTakesAndWhereToChangeIt) {
    policies::NodeSpec node;
    node.access = {{Role::kViewer, {"1002"}, {}}};
    node.origin.file = "/etc/berth/node.yaml";
    Access access = access_of(node);
    http::Request request = from_peer(1002, 1);
    auto refused = access.allows(access.identify(request), Role::kAdmin, request);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
    for (const char* word : {"user 1002", "pid=77", "role viewer", "PUT /v1/policy", "role admin",
                             "spec.access", "/etc/berth/node.yaml"})
        EXPECT_NE(refused.error().message.find(word), std::string::npos) << word;
    EXPECT_TRUE(access.allows(access.identify(request), Role::kViewer, request));
}

TEST(Access, NamesThatDoNotExistAreToldAndTheRestStands) {
    policies::NodeSpec node;
    node.access = {{Role::kViewer, {"no-such-user-here", "1002"}, {"no-such-group-here"}}};
    Access access = access_of(node);
    ASSERT_EQ(access.warnings().size(), 2U);
    EXPECT_NE(access.warnings()[0].find("no-such-user-here"), std::string::npos);
    EXPECT_EQ(access.identify(from_peer(1002, 1)).role, Role::kViewer);
}

TEST_F(Folder, ATokenIsWhoItSaysAndAnyOtherIsNobody) {
    auto first = make_token("grafana", Role::kViewer);
    auto second = make_token("ci", Role::kOperator);
    ASSERT_TRUE(first && second);
    policies::NodeSpec node;
    node.admin_tcp =
        policies::AdminTcp{"127.0.0.1:0",
                           write("# mine\n\n" + first->line + "\n  " + second->line + "\r\n"),
                           {},
                           {},
                           false};
    Access access = access_of(node);
    Caller caller = access.identify(with_token(second->token));
    EXPECT_EQ(caller.name, "token ci");
    EXPECT_EQ(caller.role, Role::kOperator);
    EXPECT_EQ(caller.from, "127.0.0.1:4711");
    for (const std::string& wrong : {std::string(), first->token + "0", first->token.substr(1),
                                     first->line.substr(first->line.find(':') + 1)}) {
        http::Request request = with_token(wrong);
        Caller nobody = access.identify(request);
        EXPECT_FALSE(nobody.is_known) << wrong;
        EXPECT_FALSE(access.allows(nobody, Role::kViewer, request));
    }
}

TEST_F(Folder, AFileThatOthersMayReadOrChangeIsRefused) {
    std::string line = make_token("a", Role::kAdmin)->line + "\n";
    for (int mode : {0644, 0604, 0620, 0602, 0666}) {
        auto refused = Tokens::read(write(line, mode));
        ASSERT_FALSE(refused) << mode;
        EXPECT_EQ(refused.error().reason, "TokenFileOpen");
        EXPECT_NE(refused.error().message.find("chmod"), std::string::npos);
    }
    for (int mode : {0600, 0640, 0400})
        EXPECT_TRUE(Tokens::read(write(line, mode))) << mode;
    if (::geteuid() == 0) {
        std::string file = write(line);
        ASSERT_EQ(::chown(file.c_str(), 4711, 0), 0);
        auto refused = Tokens::read(file);
        ASSERT_FALSE(refused);
        EXPECT_NE(refused.error().message.find("user 4711"), std::string::npos);
    }
}

TEST(Tokens, EachBrokenLineIsNamedWithWhatIsExpected) {
    std::string good = make_token("a", Role::kAdmin)->line + "\n";
    std::string hash = sha256_hex("x");
    struct Case {
        std::string line;
        const char* words;
    };
    for (const Case& one :
         {Case{"b admin", "expected NAME ROLE sha256:HEX, found 2 words"},
          Case{"b root sha256:" + hash, "'root' is no role"},
          Case{"b admin sha256:12", "64 lower-case hexadecimal"},
          Case{"b admin md5:" + hash, "sha256:"}, Case{"b/c admin sha256:" + hash, "the name"},
          Case{"a viewer sha256:" + hash, "given twice"}, Case{"word", "found 1 words"}}) {
        auto refused = Tokens::parse(good + one.line + "\n", "/etc/berth/tokens");
        ASSERT_FALSE(refused) << one.line;
        EXPECT_TRUE(refused.error().message.starts_with("/etc/berth/tokens:2: "))
            << refused.error().message;
        EXPECT_NE(refused.error().message.find(one.words), std::string::npos)
            << refused.error().message;
    }
    EXPECT_EQ(Tokens::parse("", "f")->size(), 0U);
}

TEST(Tokens, AFileOfOneBareTokenIsAnAdminsAndWarns) {
    auto tokens = Tokens::parse("0123456789abcdef0123456789abcdef\n", "/etc/berth/token");
    ASSERT_TRUE(tokens) << tokens.error().message;
    EXPECT_NE(tokens->warning().find("whoever reads it"), std::string::npos);
    const Tokens::Token* found = tokens->find("0123456789abcdef0123456789abcdef");
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->role, Role::kAdmin);
    EXPECT_FALSE(Tokens::parse("short\n", "f"));
}

} // namespace
} // namespace berth
