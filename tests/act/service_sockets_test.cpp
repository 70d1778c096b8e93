// SPDX-License-Identifier: Apache-2.0
// Goal: a service's socket, journal and parked connections outlive berthd in the keeper, change
// only as documents ask, and what a request left in the journal is gone once it is forgotten.
// Method: two ServiceBooks, one for the berthd that is gone, and a real berth-keeper between them.
#include "scheduler/act/service_sockets.h"

#include "base/descriptors.h"
#include "cache/keep/keeper_client.h"

#include <gmock/gmock.h>

#include <arpa/inet.h>
#include <cstdlib>
#include <filesystem>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {
namespace {

policies::InstanceSpec service(const std::string& name, const std::string& listen,
                               bool journal = true) {
    policies::InstanceSpec spec;
    spec.name = name;
    spec.engine.driver = policies::DriverKind::kBerth;
    spec.engine.listen = listen;
    spec.engine.journal = journal;
    return spec;
}

policies::Documents documents(std::vector<policies::InstanceSpec> instances) {
    policies::Documents all;
    all.instances = std::move(instances);
    return all;
}

bool is_same(int a, int b) {
    struct stat one{}, other{};
    return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

void write_request(const ServiceSockets& sockets, const std::string& text, off_t at) {
    ASSERT_EQ(::pwrite(sockets.journal.get(), text.data(), text.size(), at),
              static_cast<ssize_t>(text.size()));
}

std::string request_at(const ServiceSockets& sockets, size_t bytes, off_t at) {
    std::string text(bytes, '?');
    EXPECT_EQ(::pread(sockets.journal.get(), text.data(), bytes, at), static_cast<ssize_t>(bytes));
    return text;
}

bool can_connect(const std::string& endpoint) {
    const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port =
        htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
    return ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
           0;
}

class ServiceSocketsTest : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = std::filesystem::temp_directory_path() / "berth-service-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        start_.directory = pattern;
        start_.log_path = pattern + "/keeper.log";
        const char* folder = std::getenv("BERTH_BIN_DIR");
        start_.program =
            (folder != nullptr ? std::string(folder) : program_directory() + "/../bin") +
            "/berth-keeper";
        auto keeper = ensure_keeper(start_);
        ASSERT_TRUE(keeper.has_value()) << keeper.error().message;
        keeper_ = std::move(*keeper);
    }
    void TearDown() override {
        if (keeper_.process) {
            EXPECT_TRUE(keeper_.process.signal(SIGKILL).has_value());
            pollfd waiting{keeper_.process.pidfd(), POLLIN, 0};
            EXPECT_EQ(::poll(&waiting, 1, 20'000), 1);
            EXPECT_TRUE(keeper_.process.try_wait().has_value());
        }
        std::filesystem::remove_all(start_.directory);
    }

    ServiceBook book() {
        return ServiceBook([this](std::string key, std::string meta, std::vector<UniqueFd> fds) {
            std::vector<int> numbers;
            for (const UniqueFd& fd : fds)
                numbers.push_back(fd.get());
            const Status done =
                fds.empty() ? keeper_.client.drop(key) : keeper_.client.put(key, meta, numbers);
            EXPECT_TRUE(done.has_value()) << done.error().message;
        });
    }
    // As the next berthd does.
    ServiceBook recovered() {
        ServiceBook found = book();
        auto entries = keeper_.client.list();
        EXPECT_TRUE(entries.has_value());
        for (const KeeperEntry& entry : *entries) {
            auto kept = keeper_.client.get(entry.key);
            EXPECT_TRUE(kept.has_value());
            const Status adopted = found.adopt(std::move(*kept));
            EXPECT_TRUE(adopted.has_value()) << adopted.error().message;
        }
        return found;
    }
    static ServiceBook::Shared ensure(ServiceBook& book, const policies::InstanceSpec& spec) {
        auto ensured = book.ensure(spec);
        EXPECT_TRUE(ensured.has_value()) << (ensured ? "" : ensured.error().message);
        return ensured ? *ensured : nullptr;
    }

    KeeperStart start_;
    RunningKeeper keeper_;
};

TEST_F(ServiceSocketsTest, OutliveBerthdInTheKeeperAndAreTheSame) {
    const auto spec = service("chat", "127.0.0.1:0");
    ServiceBook first = book();
    const auto made = ensure(first, spec);
    ASSERT_NE(made, nullptr);
    write_request(*made, "a prompt", 12288);
    const ServiceBook second = recovered();
    const auto found = second.find(spec);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->listen, made->listen);
    EXPECT_EQ(found->endpoint, made->endpoint) << "the port that the system chose";
    EXPECT_TRUE(is_same(found->socket.get(), made->socket.get()));
    EXPECT_TRUE(is_same(found->journal.get(), made->journal.get()));
    EXPECT_TRUE(is_same(found->parked_in.get(), made->parked_in.get()));
    EXPECT_TRUE(is_same(found->parked_out.get(), made->parked_out.get()));
    EXPECT_EQ(request_at(*found, 8, 12288), "a prompt");
    EXPECT_TRUE(can_connect(found->endpoint)) << "into the queue: nobody accepts";
}

TEST_F(ServiceSocketsTest, AnEntryThatIsNoneIsRefusedAndNothingIsKnownOfIt) {
    ServiceBook made = book();
    KeptEntry entry;
    entry.key = "service/chat";
    entry.meta = R"({"listen":"127.0.0.1:0"})";
    entry.fds.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    entry.fds.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Status adopted = made.adopt(std::move(entry));
    ASSERT_FALSE(adopted.has_value());
    EXPECT_EQ(adopted.error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(made.find(service("chat", "127.0.0.1:0")), nullptr);
}

TEST_F(ServiceSocketsTest, RequestsOfOneServiceAreForgottenThoseOfOthersAndTheSocketsStay) {
    const auto chat = service("chat", "127.0.0.1:0"), other = service("other", "127.0.0.1:0");
    ServiceBook made = book();
    const auto sockets = ensure(made, chat), beside = ensure(made, other);
    const off_t last = static_cast<off_t>(ServiceBook::kJournalBytes) - 8;
    write_request(*sockets, "poisoned", 12288);
    write_request(*sockets, "poisoned", last);
    write_request(*beside, "harmless", 12288);
    ServiceBook next = recovered(); // it is the next one that starts the next engine
    next.forget_requests(chat);
    EXPECT_EQ(request_at(*sockets, 8, 12288), std::string(8, '\0'));
    EXPECT_EQ(request_at(*sockets, 8, last), std::string(8, '\0'));
    EXPECT_EQ(::lseek(sockets->journal.get(), 0, SEEK_DATA), -1) << "its memory was given back";
    struct stat facts{};
    ASSERT_EQ(::fstat(sockets->journal.get(), &facts), 0);
    EXPECT_EQ(static_cast<uint64_t>(facts.st_size), ServiceBook::kJournalBytes);
    EXPECT_EQ(request_at(*beside, 8, 12288), "harmless");
    EXPECT_TRUE(can_connect(sockets->endpoint));
}

TEST_F(ServiceSocketsTest, WhereNobodyKnowsWhichRequestsWereNotedAllAreForgotten) {
    const auto chat = service("chat", "127.0.0.1:0");
    ServiceBook made = book();
    const auto sockets = ensure(made, chat);
    write_request(*sockets, "poisoned", 12288);
    made.note_requests(chat); // there is no journal that one could read
    made.forget_noted(chat);
    EXPECT_EQ(request_at(*sockets, 8, 12288), std::string(8, '\0'));
}

TEST_F(ServiceSocketsTest, AStandbyHasThoseOfTheOneItStandsByFor) {
    auto spare = service("spare", "127.0.0.1:0");
    spare.standby_of = "chat";
    ServiceBook made = book();
    const auto sockets = ensure(made, service("chat", "127.0.0.1:0"));
    EXPECT_EQ(ensure(made, spare), sockets);
    write_request(*sockets, "poisoned", 12288);
    made.forget_requests(spare);
    EXPECT_EQ(request_at(*sockets, 8, 12288), std::string(8, '\0'));
}

TEST_F(ServiceSocketsTest, WithoutAJournalThereIsTheSocketAloneAndNothingToForget) {
    const auto spec = service("chat", "127.0.0.1:0", false);
    ServiceBook made = book();
    const auto sockets = ensure(made, spec);
    EXPECT_FALSE(sockets->journal);
    EXPECT_EQ(sockets->listen_fds(false).size(), 1U);
    made.forget_requests(spec);
    const ServiceBook next = recovered();
    ASSERT_NE(next.find(spec), nullptr);
    EXPECT_FALSE(next.find(spec)->journal);
}

TEST_F(ServiceSocketsTest, AtAnotherAddressTheJournalStaysAndTheSocketIsAnother) {
    ServiceBook made = book();
    const auto before = ensure(made, service("chat", "127.0.0.1:0"));
    write_request(*before, "in flight", 12288);
    const std::string path = "unix:" + start_.directory + "/chat.sock";
    const auto after = ensure(made, service("chat", path));
    EXPECT_EQ(after->endpoint, path);
    EXPECT_FALSE(is_same(after->socket.get(), before->socket.get()));
    EXPECT_TRUE(is_same(after->journal.get(), before->journal.get()));
    EXPECT_EQ(request_at(*after, 9, 12288), "in flight");
    EXPECT_EQ(recovered().find(service("chat", path))->endpoint, path) << "the keeper's copy too";
}

TEST_F(ServiceSocketsTest, WhatNoDocumentAsksForIsClosedHereAndInTheKeeper) {
    ServiceBook made = book();
    const std::string path = start_.directory + "/gone.sock";
    const auto nobody_failed = [](const std::string& instance, const Error& error) {
        ADD_FAILURE() << instance << ": " << error.message;
    };
    const auto chat = service("chat", "127.0.0.1:0"), gone = service("gone", "unix:" + path);
    made.follow(documents({chat, gone}), nobody_failed);
    ASSERT_NE(made.find(gone), nullptr);
    ASSERT_TRUE(std::filesystem::exists(path));
    const std::string endpoint = made.find(chat)->endpoint;
    made.follow(documents({chat}), nobody_failed);
    EXPECT_EQ(made.find(gone), nullptr);
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(made.find(chat)->endpoint, endpoint) << "the other is as it was";
    EXPECT_EQ(keeper_.client.list()->size(), 1U);
}

TEST_F(ServiceSocketsTest, AnAddressThatIsTakenIsTold) {
    ServiceBook made = book();
    const auto one = ensure(made, service("one", "127.0.0.1:0"));
    const std::string taken = one->endpoint.substr(one->endpoint.find("127."));
    std::vector<std::string> failed;
    made.follow(documents({service("one", "127.0.0.1:0"), service("two", taken)}),
                [&](const std::string& instance, const Error& error) {
                    failed.push_back(instance + " " + error.reason);
                });
    EXPECT_THAT(failed, ::testing::ElementsAre("two AddressInUse"));
    EXPECT_NE(made.find(service("one", "127.0.0.1:0")), nullptr);
}

} // namespace
} // namespace berth
