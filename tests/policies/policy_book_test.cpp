// SPDX-License-Identifier: Apache-2.0
// Goal: what is applied holds as a whole or not at all, outlasts the process as it was, and files
// that are wrong leave what holds alone. Method: a book over real files; a store of rows in memory.
#include "scheduler/act/policy_book.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace berth {

namespace {

const std::string kModel = "kind: Model\nmetadata: {name: m}\nspec: {path: /m}\n";

std::string instance(const std::string& name, const std::string& memory) {
    return "kind: Instance\nmetadata: {name: " + name +
           "}\nspec: {model: m, resources: {limits: {memory: " + memory +
           "}}, engine: {command: [e]}}\n";
}

class PolicyBookTest : public testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("berth-book-" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_ / "policies");
        std::ofstream(config())
            << "kind: Node\nmetadata: {name: n}\nspec: {policies: [policies]}\n";
        write(kModel + "---\n" + instance("a", "1Gi"));
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string config() const { return (folder_ / "node.yaml").string(); }
    void write(const std::string& text) const {
        std::ofstream(folder_ / "policies" / "p.yaml") << text;
    }
    PolicyBook open() {
        Result<PolicyBook> book = PolicyBook::open(config(), rows_, warnings_);
        EXPECT_TRUE(book) << book.error().message;
        return book.value();
    }
    void store(const std::vector<StoreWrite>& writes) {
        for (const StoreWrite& write : writes) {
            if (const auto* put = std::get_if<PolicyRecord>(&write))
                rows_.push_back(*put);
            else
                std::erase_if(rows_, [&](const PolicyRecord& row) {
                    return row.source == std::get<ForgetPolicy>(write).source;
                });
        }
        std::ranges::sort(rows_, {}, &PolicyRecord::source);
    }
    Status apply(PolicyBook& book, const std::vector<policies::SourceText>& texts) {
        BERTH_ASSIGN(PolicyBook::Change change, book.prepare(texts));
        store(change.writes);
        return book.commit(change);
    }
    static Status reload(PolicyBook& book) {
        BERTH_ASSIGN(const PolicyBook::Change change, book.prepare_reload());
        return book.commit(change);
    }
    static std::string memory_of(const PolicyBook& book, const std::string& name) {
        const policies::InstanceSpec* found = book.documents().find_instance(name);
        return found == nullptr ? "absent" : format_bytes_exact(found->memory_limit_bytes);
    }

    std::filesystem::path folder_;
    std::vector<PolicyRecord> rows_;
    std::vector<std::string> warnings_;
};

} // namespace

TEST_F(PolicyBookTest, WhatIsAppliedLiesOverTheFilesAndOutlastsTheProcess) {
    PolicyBook book = open();
    const std::string before = book.tag();
    ASSERT_TRUE(
        apply(book, {{"/x.yaml", instance("a", "2Gi")}, {"/y.yaml", instance("b", "3Gi")}}));
    EXPECT_EQ(memory_of(book, "a"), "2Gi");
    EXPECT_EQ(memory_of(book, "b"), "3Gi");
    EXPECT_NE(book.tag(), before);
    EXPECT_EQ(book.hidden(), std::vector<std::string>{"Instance/a"});
    PolicyBook again = open();
    EXPECT_TRUE(warnings_.empty());
    EXPECT_EQ(again.tag(), book.tag()) << "the same policy has the same tag in the next process";
}

TEST_F(PolicyBookTest, FilesAppliedTogetherMayNameEachOthersDocumentsAlsoAfterARestart) {
    PolicyBook book = open();
    const policies::SourceText needs{"/a-needs.yaml",
                                     "kind: Instance\nmetadata: {name: c}\nspec: {model: z, "
                                     "resources: {limits: {memory: 1Gi}}, engine: {command: [e]}}"};
    const policies::SourceText has{"/b-has.yaml",
                                   "kind: Model\nmetadata: {name: z}\nspec: {path: /z}\n"};
    const Status alone = apply(book, {needs});
    ASSERT_FALSE(alone);
    EXPECT_NE(alone.error().message.find("/a-needs.yaml:3:15: Instance 'c': field 'spec.model'"),
              std::string::npos)
        << alone.error().message;
    EXPECT_TRUE(rows_.empty());
    ASSERT_TRUE(apply(book, {needs, has}));
    EXPECT_EQ(memory_of(open(), "c"), "1Gi");
    EXPECT_TRUE(warnings_.empty()) << warnings_.front();
}

TEST_F(PolicyBookTest, OneWrongFileOfSeveralAppliesNone) {
    PolicyBook book = open();
    const std::string before = book.tag();
    const Status done =
        apply(book, {{"/x.yaml", instance("a", "2Gi")}, {"/y.yaml", instance("b", "soon")}});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().message.substr(0, 10), "/y.yaml:3:") << done.error().message;
    EXPECT_FALSE(
        apply(book, {{"/x.yaml", instance("a", "2Gi")}, {"/y.yaml", instance("a", "3Gi")}}));
    EXPECT_EQ(book.tag(), before);
    EXPECT_TRUE(rows_.empty());
}

TEST_F(PolicyBookTest, WhatIsSaidAnewIsForgottenSoThatRecordsDoNotGrow) {
    PolicyBook book = open();
    for (int i = 1; i <= 20; ++i) {
        ASSERT_TRUE(apply(book, {{"/x.yaml", instance("a", std::to_string(i) + "Gi") + "---\n" +
                                                 instance("b", "1Gi")}}));
        ASSERT_TRUE(apply(book, {{"/a.yaml", instance("a", "1Gi")}}));
        ASSERT_TRUE(apply(book, {{"/b.yaml", instance("b", "2Gi")}}));
        EXPECT_EQ(rows_.size(), 2U);
    }
    EXPECT_EQ(memory_of(open(), "b"), "2Gi");
    EXPECT_EQ(open().tag(), book.tag());
}

TEST_F(PolicyBookTest, BackToTheFilesForgetsAllAndUndoTakesBack) {
    PolicyBook book = open();
    const std::string before = book.tag();
    ASSERT_TRUE(apply(book, {{"/x.yaml", instance("a", "2Gi")}}));
    const std::vector<PolicyRecord> rows = rows_;
    Result<PolicyBook::Change> reset = book.prepare_files_alone();
    ASSERT_TRUE(reset);
    store(reset->writes);
    EXPECT_TRUE(rows_.empty());
    store(reset->undo);
    EXPECT_EQ(rows_, rows);
    store(reset->writes);
    ASSERT_TRUE(book.commit(*reset));
    EXPECT_EQ(book.tag(), before);
}

TEST_F(PolicyBookTest, AnInstanceIsTakenOutOfWhateverWasAppliedAndStaysOutAfterARestart) {
    PolicyBook book = open();
    const std::string before = book.tag();
    ASSERT_TRUE(
        apply(book, {{"/x.yaml", "kind: Model\nmetadata: {name: z}\nspec: {path: /z}\n---\n" +
                                     instance("b", "1Gi") + "---\n" + instance("c", "1Gi")}}));
    ASSERT_TRUE(apply(book, {{"/b.yaml", instance("b", "2Gi")}}));
    EXPECT_EQ(rows_.size(), 2U);
    const std::vector<PolicyRecord> rows = rows_;
    Result<PolicyBook::Change> gone = book.prepare_without("b");
    ASSERT_TRUE(gone) << gone.error().message;
    store(gone->writes);
    EXPECT_EQ(rows_.size(), 1U) << "what said nothing else is forgotten";
    store(gone->undo);
    EXPECT_EQ(rows_, rows) << "undo takes it back";
    store(gone->writes);
    ASSERT_TRUE(book.commit(*gone));
    EXPECT_EQ(memory_of(book, "b"), "absent");
    EXPECT_EQ(memory_of(book, "c"), "1Gi");
    EXPECT_NE(book.documents().find_model("z"), nullptr);
    EXPECT_EQ(book.documents().find_instance("c")->origin.text(), "/x.yaml:9:1");
    EXPECT_EQ(open().tag(), book.tag());
    EXPECT_TRUE(warnings_.empty());
    EXPECT_NE(book.tag(), before);
}

TEST_F(PolicyBookTest, WhatAFileDefinesIsNotTakenOutAndTheRefusalSaysWhere) {
    PolicyBook book = open();
    ASSERT_TRUE(apply(book, {{"/a.yaml", instance("a", "2Gi")}}));
    const auto refused = book.prepare_without("a");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, "DefinedInFile");
    EXPECT_NE(refused.error().message.find("policies/p.yaml:5:1"), std::string::npos)
        << refused.error().message;
    write(kModel);
    ASSERT_TRUE(reload(book));
    EXPECT_TRUE(book.prepare_without("a")) << "now only what was applied has it";
    const auto unknown = book.prepare_without("aa");
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().reason, "InstanceNotFound");
}

TEST_F(PolicyBookTest, AnInstanceHasATagOfItsOwnThatOnlyItsDocumentChanges) {
    PolicyBook book = open();
    const std::string tag = book.instance_tags().at("a");
    ASSERT_TRUE(apply(book, {{"/b.yaml", instance("b", "2Gi")}}));
    EXPECT_EQ(book.instance_tags().at("a"), tag);
    EXPECT_NE(book.instance_tags().at("b"), tag);
    const std::string beside = (folder_ / "policies" / "a.yaml").string(); // for relative paths
    ASSERT_TRUE(apply(book, {{beside, instance("a", "2Gi")}}));
    EXPECT_NE(book.instance_tags().at("a"), tag);
    ASSERT_TRUE(apply(book, {{beside, instance("a", "1Gi")}}));
    EXPECT_EQ(book.instance_tags().at("a"), tag);
}

TEST_F(PolicyBookTest, AFileThatIsBrokenLeavesThePolicyInForce) {
    PolicyBook book = open();
    ASSERT_TRUE(apply(book, {{"/b.yaml", instance("b", "2Gi")}}));
    const std::string before = book.tag();
    write(kModel + "---\n" + instance("a", "x"));
    const Status broken = reload(book);
    ASSERT_FALSE(broken);
    EXPECT_NE(broken.error().message.find("policies/p.yaml:7:47: "), std::string::npos)
        << broken.error().message;
    write(instance("a", "2Gi")); // and b, which was applied, needs Model m too
    EXPECT_FALSE(reload(book));
    EXPECT_EQ(book.tag(), before);
    EXPECT_EQ(memory_of(book, "a"), "1Gi");
    write(kModel + "---\n" + instance("a", "5Gi"));
    ASSERT_TRUE(reload(book));
    EXPECT_EQ(memory_of(book, "a"), "5Gi");
    EXPECT_EQ(memory_of(book, "b"), "2Gi");
}

TEST_F(PolicyBookTest, AChangeThatFilesReadMeanwhileContradictIsNotCommitted) {
    PolicyBook book = open();
    Result<PolicyBook::Change> change = book.prepare({{"/b.yaml", instance("b", "2Gi")}});
    ASSERT_TRUE(change);
    write("kind: Model\nmetadata: {name: other}\nspec: {path: /m}\n");
    ASSERT_TRUE(reload(book));
    const std::string now = book.tag();
    EXPECT_FALSE(book.commit(*change));
    EXPECT_EQ(book.tag(), now);
    write(kModel);
    ASSERT_TRUE(reload(book));
    Result<PolicyBook::Change> later = book.prepare({{"/b.yaml", instance("b", "2Gi")}});
    ASSERT_TRUE(later);
    write(kModel + "---\n" + instance("a", "7Gi"));
    ASSERT_TRUE(reload(book));
    ASSERT_TRUE(book.commit(*later));
    EXPECT_EQ(memory_of(book, "a"), "7Gi");
    EXPECT_EQ(memory_of(book, "b"), "2Gi");
}

TEST_F(PolicyBookTest, FilesThatWereReadWhileSomethingWasAppliedKeepBoth) {
    PolicyBook book = open();
    write(kModel + "---\n" + instance("a", "7Gi"));
    Result<PolicyBook::Change> files = book.prepare_reload();
    ASSERT_TRUE(files);
    ASSERT_TRUE(apply(book, {{"/b.yaml", instance("b", "2Gi")}}));
    EXPECT_EQ(memory_of(book, "a"), "1Gi");
    ASSERT_TRUE(book.commit(*files));
    EXPECT_EQ(memory_of(book, "a"), "7Gi");
    EXPECT_EQ(memory_of(book, "b"), "2Gi");
    EXPECT_EQ(open().tag(), book.tag());
}

TEST_F(PolicyBookTest, WhatNoLongerFitsIsLeftOutWithAWarningAndANodeIsNotApplied) {
    PolicyBook book = open();
    ASSERT_TRUE(apply(book, {{"/b.yaml", instance("b", "2Gi")}}));
    write("kind: Model\nmetadata: {name: other}\nspec: {path: /m}\n");
    PolicyBook again = open();
    ASSERT_EQ(warnings_.size(), 1U);
    EXPECT_NE(warnings_[0].find("no longer fits"), std::string::npos);
    EXPECT_EQ(memory_of(again, "b"), "absent");
    const Status node = apply(again, {{"/n.yaml", "kind: Node\nmetadata: {name: n}\nspec: {}\n"}});
    ASSERT_FALSE(node);
    EXPECT_NE(node.error().message.find("/n.yaml:1:1: a Node document is read from"),
              std::string::npos)
        << node.error().message;
}

} // namespace berth
