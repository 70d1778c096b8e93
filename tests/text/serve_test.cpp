// SPDX-License-Identifier: Apache-2.0
// The server's parts by themselves: stop strings, answers from events, batch files. The whole is
// shown by test_openai_client.py and test_batch.py.
#include "engine_shim/reference/serve/batch_file.h"
#include "engine_shim/reference/serve/metrics.h"
#include "engine_shim/reference/serve/progress.h"
#include "engine_shim/reference/serve/stop_matcher.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace berth::serve {
namespace {

// What a matcher gives out for a text that comes in pieces of `step` bytes.
std::pair<std::string, bool> pushed(const std::string& text, std::vector<std::string> stops,
                                    size_t step) {
    StopMatcher matcher(std::move(stops));
    std::string out;
    for (size_t at = 0; at < text.size() && !matcher.stopped(); at += step)
        out += matcher.push(std::string_view(text).substr(at, step));
    if (!matcher.stopped())
        out += matcher.finish();
    return {out, matcher.stopped()};
}

TEST(StopMatcher, FindsAStopStringAtEverySplit) {
    const std::string text = "one two STOP three";
    for (size_t step = 1; step <= text.size(); ++step) {
        EXPECT_EQ(pushed(text, {"STOP"}, step), std::pair(std::string("one two "), true)) << step;
        EXPECT_EQ(pushed(text, {"STOPS"}, step), std::pair(text, false)) << step;
        EXPECT_EQ(pushed(text, {}, step), std::pair(text, false)) << step;
    }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStopString) {
    StopMatcher matcher({"aab"});
    EXPECT_EQ(matcher.push("xa"), "x");
    EXPECT_EQ(matcher.push("a"), "");
    EXPECT_EQ(matcher.push("a"), "a"); // "aa" still may
    EXPECT_EQ(matcher.push("c"), "aac");
    EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, TheEarliestOfSeveralCounts) {
    EXPECT_EQ(pushed("abcdef", {"ef", "cd"}, 6).first, "ab");
    EXPECT_EQ(pushed("abcdef", {"bcdefg", "de"}, 1).first, "abc");
}

class BatchOutputTest : public testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("berth_batch_" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
        path_ = folder_ / "out.jsonl";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    void write(const std::string& text) { std::ofstream(path_) << text; }
    std::string read() {
        std::ifstream in(path_);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    std::filesystem::path folder_;
    std::filesystem::path path_;
};

TEST_F(BatchOutputTest, HalfALastLineIsCutOffAndTheRestKept) {
    write("{\"custom_id\":\"a\"}\n{\"custom_id\":\"b\"");
    Result<BatchOutput> output = BatchOutput::open(path_);
    ASSERT_TRUE(output.has_value()) << output.error().message;
    EXPECT_EQ(output->answered(), std::set<std::string>{"a"});
    EXPECT_EQ(read(), "{\"custom_id\":\"a\"}\n");
    ASSERT_TRUE(output->append("{\"custom_id\":\"b\"}\n").has_value());
    EXPECT_EQ(read(), "{\"custom_id\":\"a\"}\n{\"custom_id\":\"b\"}\n");
}

TEST_F(BatchOutputTest, ASecondWriterIsRefusedUntilTheFirstIsGone) {
    {
        Result<BatchOutput> first = BatchOutput::open(path_);
        ASSERT_TRUE(first.has_value());
        Result<BatchOutput> second = BatchOutput::open(path_);
        ASSERT_FALSE(second.has_value());
        EXPECT_EQ(second.error().code, ErrorCode::kAlreadyExists);
    }
    EXPECT_TRUE(BatchOutput::open(path_).has_value());
}

TEST(BatchInput, EveryKindOfWrongLineIsReportedWithItsNumber) {
    const std::string good =
        R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{}})";
    EXPECT_EQ(parse_batch_input(good + "\r\n\n", "f")->size(), 1U);
    Result<std::vector<BatchItem>> twice = parse_batch_input(good + "\n\n" + good, "f");
    ASSERT_FALSE(twice.has_value());
    EXPECT_NE(twice.error().message.find("line 3: custom_id 'a' is already that of line 1"),
              std::string::npos)
        << twice.error().message;
    for (const char* wrong :
         {"[]", R"({"custom_id":""})", R"({"custom_id":5,"url":"/v1/completions","body":{}})",
          R"({"custom_id":"b","url":"/v1/completions"})",
          R"({"custom_id":"b","url":"/v1/completions","body":[]})",
          R"({"custom_id":"b","url":"/v1/x","body":{}})"}) {
        Result<std::vector<BatchItem>> parsed = parse_batch_input(good + "\n" + wrong, "f");
        ASSERT_FALSE(parsed.has_value()) << wrong;
        EXPECT_NE(parsed.error().message.find("line 2"), std::string::npos);
    }
    EXPECT_FALSE(parse_batch_input("\n", "f").has_value());
}

TEST(Progress, ALineHasCountsRateAndTimeLeft) {
    Progress progress(10, 30);
    EXPECT_EQ(progress.line(20, 500, std::chrono::seconds(5), true),
              "[####################          ] 20/30 67% 2.0 requests/s 100 tokens/s 5 s left");
    EXPECT_EQ(progress.line(30, 500, std::chrono::seconds(5), false),
              "30/30 100% 4.0 requests/s 100 tokens/s");
}

TEST(TimeHistogram, BucketsAreCumulative) {
    TimeHistogram histogram;
    histogram.add(0.002);
    histogram.add(0.003);
    histogram.add(1000);
    std::string text;
    histogram.write(text, "t", "help");
    EXPECT_NE(text.find("t_bucket{le=\"0.001\"} 0\n"), std::string::npos) << text;
    EXPECT_NE(text.find("t_bucket{le=\"0.0025\"} 1\n"), std::string::npos);
    EXPECT_NE(text.find("t_bucket{le=\"60\"} 2\n"), std::string::npos);
    EXPECT_NE(text.find("t_bucket{le=\"+Inf\"} 3\n"), std::string::npos);
    EXPECT_NE(text.find("t_count 3\n"), std::string::npos);
}

} // namespace
} // namespace berth::serve
