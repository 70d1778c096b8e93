// SPDX-License-Identifier: Apache-2.0
// Goal: what `berth top` shows is right, fits its screen and is the same for the same replies.
// Method: the pure renderer against pictures written out by hand; golden lines.
#include "scheduler/cli/top_view.h"

#include "scheduler/cli/styled_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::ResultOf;
using testing::SizeIs;

constexpr uint64_t kGiB = 1ULL << 30;

json::object grant(const std::string& name, uint64_t bytes) {
    return {{"kind", "grant"}, {"name", name}, {"bytes", bytes}, {"state", "Held"}};
}

json::object instance(const std::string& name, const std::string& of_class, int64_t priority,
                      const std::string& state, uint64_t tokens) {
    return {{"name", name},
            {"priorityClass", of_class},
            {"priority", priority},
            {"state", state},
            {"substate", ""},
            {"reason", ""},
            {"message", ""},
            {"device", "host-0"},
            {"pid", 42},
            {"connected", true},
            {"grantBytes", kGiB},
            {"counters", json::object{{"requestsRunning", 2},
                                      {"requestsWaiting", 1},
                                      {"tokensDone", tokens},
                                      {"gatePauses", tokens / 10}}}};
}

TopPicture picture() {
    TopPicture shown;
    json::object device{{"id", "host-0"},
                        {"totalBytes", 8 * kGiB},
                        {"weightBytes", 2 * kGiB},
                        {"freeBytes", 3 * kGiB},
                        {"cordoned", false},
                        {"owners", json::array{grant("chat", kGiB), grant("nightly", kGiB),
                                               json::object{{"kind", "reserve"},
                                                            {"name", "memory.deviceReserve"},
                                                            {"bytes", kGiB}}}}};
    json::object nightly = instance("nightly", "batch", 100, "Suspended", 500);
    nightly["reason"] = "WaitingForDevice";
    nightly["message"] = "class online: 5 requests wait at chat";
    nightly["connected"] = false;
    shown.node = json::object{
        {"name", "gpu-17"},
        {"ready", true},
        {"mode", "Enforce"},
        {"uptimeMs", 3'900'000},
        {"sessions", 2},
        {"rssBytes", 20ULL << 20},
        {"devices", json::array{device}},
        {"instances", json::array{nightly, instance("chat", "online", 1000, "Running", 1000)}}};
    shown.events = json::array{json::object{{"revision", 7},
                                            {"time", "2026-11-29T23:18:01.123Z"},
                                            {"kind", "Normal"},
                                            {"object", "instance/nightly"},
                                            {"reason", "Suspended"},
                                            {"message", "1.0 GiB freed"}}};
    shown.decisions = json::array{json::object{{"timeMs", 1'795'994'280'000},
                                               {"kind", "Preempt"},
                                               {"object", "instance/chat"},
                                               {"winner", "instance/nightly"},
                                               {"outcome", "1.0 GiB will be freed"},
                                               {"carriedOut", true}}};
    shown.rates["chat"] = {123.4, 0};
    shown.time = "23:18:02";
    return shown;
}

TEST(Top, ShowsDevicesInstancesAndWhatHappenedInEightyColumns) {
    const std::vector<std::string> lines = top_lines(picture(), TopScreen{80, 24, false, true});
    const std::vector<std::string> golden = {
        "berth gpu-17  ready  up 65m0s  2 engines  20M resident                  23:18:02",
        "host-0       [WWWWWWWWWWWWbbbbbbooooooRRRRRR................]  3.0G free of 8.0G",
        "             W weights 2.0G  b batch 1.0G  o online 1.0G  R reserve 1.0G",
        "INSTANCE CLASS  STATE      DEVICE GRANT RUN/WAIT  TOK/S GATE/S  WHY",
        "chat     online Running    host-0  1.0G      2/1    123    0.0",
        "nightly  batch  Suspended  host-0  1.0G        -      -      -  WaitingForDevic~",
        "LAST",
        "23:18:00 instance/chat Preempt instance/nightly: 1.0 GiB will be freed",
        "23:18:01 instance/nightly Suspended 1.0 GiB freed",
    };
    ASSERT_GE(lines.size(), golden.size());
    for (size_t n = 0; n < golden.size(); ++n)
        EXPECT_EQ(lines[n], golden[n]) << "line " << n;
    EXPECT_EQ(lines.size(), 24u);
    EXPECT_EQ(lines.back(), "q quits");
}

TEST(Top, NeverExceedsItsScreenWhateverItsSize) {
    TopPicture crowded = picture();
    json::array many;
    for (int n = 0; n < 300; ++n)
        many.push_back(
            instance("a-name-that-is-long-" + std::to_string(n), "online", n, "Running", 1));
    crowded.node["instances"] = many;
    json::array devices;
    for (int n = 0; n < 16; ++n) {
        json::object one = picture().node["devices"].as_array()[0].as_object();
        one["id"] = "GPU-5a0e2c11-0000-1111-2222-33334444555" + std::to_string(n % 10);
        one["cordoned"] = n % 2 == 0;
        one["cordonReason"] = "a reason that goes on and on and on and on and on and on and on";
        devices.push_back(one);
    }
    crowded.node["devices"] = devices;
    for (size_t width : {1u, 10u, 40u, 80u, 131u, 300u})
        for (size_t height : {1u, 2u, 5u, 24u, 60u}) {
            const auto lines = top_lines(crowded, TopScreen{width, height, false, true});
            EXPECT_LE(lines.size(), height) << width << "x" << height;
            for (const std::string& line : lines)
                EXPECT_LE(columns_of(line), width) << width << "x" << height << ": " << line;
        }
}

TEST(Top, SaysHowManyInstancesDoNotFit) {
    TopPicture crowded = picture();
    json::array many;
    for (int n = 0; n < 50; ++n)
        many.push_back(instance("i" + std::to_string(n), "online", n, "Running", 1));
    crowded.node["instances"] = many;
    std::string text;
    for (const std::string& line : top_lines(crowded, TopScreen{80, 24, false, false}))
        text += line + "\n";
    EXPECT_THAT(text, HasSubstr("i49"));
    EXPECT_THAT(text, Not(HasSubstr("i1 ")));
    EXPECT_THAT(text, HasSubstr("more instances"));
    EXPECT_THAT(text, HasSubstr("LAST"));
}

TEST(Top, ColoursOnlyWhereItMay) {
    for (const std::string& line : top_lines(picture(), TopScreen{80, 24, false, true}))
        EXPECT_THAT(line, Not(HasSubstr("\x1b")));
    std::string text;
    for (const std::string& line : top_lines(picture(), TopScreen{80, 24, true, true}))
        text += line + "\n";
    EXPECT_THAT(text, HasSubstr("\x1b[32mRunning"));
    EXPECT_THAT(text, HasSubstr("█"));
}

TEST(Top, ShowsACordonWithItsReasonAndADaemonThatDoesNotAnswer) {
    TopPicture shown = picture();
    json::object& device = shown.node["devices"].as_array()[0].as_object();
    device["cordoned"] = true;
    device["cordonReason"] = "fan replacement";
    device["drainedBy"] = "op-12";
    shown.trouble = "no answer for 3s (DaemonNotReachable)";
    std::string text;
    for (const std::string& line : top_lines(shown, TopScreen{80, 24, false, true}))
        text += line + "\n";
    EXPECT_THAT(text, HasSubstr("being drained (op-12): fan replacement"));
    EXPECT_THAT(text, HasSubstr("no answer for 3s"));
}

TEST(Top, ControlCharactersOfAReplyDoNotMoveTheCursor) {
    TopPicture shown = picture();
    shown.node["instances"].as_array()[0].as_object()["message"] = "a\x1b[2Jb\nc";
    for (const std::string& line : top_lines(shown, TopScreen{200, 24, false, true})) {
        EXPECT_THAT(line, Not(HasSubstr("\x1b")));
        EXPECT_THAT(line, Not(HasSubstr("\n")));
    }
}

TEST(Top, AnEmptyNodeIsShownToo) {
    const auto lines = top_lines(TopPicture{}, TopScreen{80, 24, false, false});
    EXPECT_THAT(lines, testing::Contains("no instances"));
}

TEST(Top, RatesAreOfTheSameProcessAndNeverNegative) {
    json::object before{{"instances", json::array{instance("a", "x", 1, "Running", 100),
                                                  instance("b", "x", 1, "Running", 100),
                                                  instance("c", "x", 1, "Running", 100)}}};
    json::object restarted = instance("b", "x", 1, "Running", 10);
    restarted["pid"] = 43;
    json::object after{{"instances", json::array{instance("a", "x", 1, "Running", 150), restarted,
                                                 instance("c", "x", 1, "Running", 90),
                                                 instance("d", "x", 1, "Running", 5)}}};
    const auto rates = rates_between(before, after, 0.5);
    EXPECT_THAT(rates, SizeIs(2));
    EXPECT_DOUBLE_EQ(rates.at("a").tokens_per_s, 100);
    EXPECT_DOUBLE_EQ(rates.at("a").pauses_per_s, 10);
    EXPECT_DOUBLE_EQ(rates.at("c").tokens_per_s, 0);
    EXPECT_THAT(rates_between(before, after, 0), SizeIs(0));
}

TEST(StyledLine, CutsByCodePointsAndMarksWhatIsCut) {
    EXPECT_EQ(cut("abc", 3), "abc");
    EXPECT_EQ(cut("abcd", 3), "ab~");
    EXPECT_EQ(cut("äöü", 3), "äöü");
    EXPECT_EQ(cut("äöüß", 2), "ä~");
    EXPECT_EQ(cut("abc", 0), "");
    EXPECT_EQ(cut("a\tb", 5), "a?b");
}

} // namespace
} // namespace berth::cli
