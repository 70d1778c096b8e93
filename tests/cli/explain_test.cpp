// SPDX-License-Identifier: Apache-2.0
// Goal: an operator who was woken up reads why an instance is where it is, and what to do.
// Method: the pure writers of `berth explain` and `berth plan` against replies written by hand.
#include "scheduler/cli/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kNow = 1'795'994'345'000;

json::object instance(const std::string& state, const std::string& reason,
                      const std::string& message) {
    return {{"name", "nightly"},
            {"priorityClass", "batch"},
            {"priority", 100},
            {"state", state},
            {"substate", ""},
            {"desired", state},
            {"heldBy", ""},
            {"onHold", false},
            {"reason", reason},
            {"message", message},
            {"device", "host-0"},
            {"devices", json::array{"host-0"}},
            {"grantBytes", 1ULL << 30},
            {"operation", ""},
            {"log", "/var/lib/berth/nightly.log"},
            {"sinceMs", 65'000}};
}

json::object preempt_decision() {
    return {{"id", "d-1"},
            {"timeMs", kNow - 65'000},
            {"kind", "Preempt"},
            {"object", "instance/chat"},
            {"inputs", json::array{json::object{{"name", "device"}, {"value", "host-0"}},
                                   json::object{{"name", "missing"}, {"value", "512.0 MiB"}}}},
            {"candidates", json::array{json::object{{"name", "instance/search"},
                                                    {"why", "its class may not be preempted"},
                                                    {"taken", false},
                                                    {"bytes", 0}},
                                       json::object{{"name", "instance/nightly"},
                                                    {"why", "Offload"},
                                                    {"taken", true},
                                                    {"bytes", 1ULL << 30}}}},
            {"winner", "instance/nightly"},
            {"outcome", "512.0 MiB will be freed"},
            {"carriedOut", true}};
}

TEST(Explain, ADecisionSaysWhatWasWeighedWhoWasTakenAndWhoNotAndWhy) {
    EXPECT_EQ(decision_text(preempt_decision(), kNow),
              "Preempt for instance/chat, 2026-11-29T23:18:00Z (65s ago, d-1)\n"
              "  weighed   device host-0, missing 512.0 MiB\n"
              "  taken     instance/nightly  Offload (1.0 GiB)\n"
              "  rejected  instance/search   its class may not be preempted\n"
              "  winner    instance/nightly\n"
              "  outcome   512.0 MiB will be freed\n");
}

TEST(Explain, ADecisionOfAPolicyThatOnlyObservesSaysThatNothingWasDone) {
    json::object decision = preempt_decision();
    decision["carriedOut"] = false;
    EXPECT_THAT(decision_text(decision, kNow), HasSubstr("nothing of it was done"));
}

TEST(Explain, AVictimIsToldWhoTookItsMemoryAndWhenItComesBack) {
    json::object victim = instance("Suspended", "WaitingForDevice",
                                   "class online: 5 requests wait at chat, more than 4");
    victim["heldBy"] = "Planner";
    const std::string text = explanation(victim, json::array{preempt_decision()}, {}, kNow);
    EXPECT_THAT(text,
                HasSubstr("nightly is Suspended since 65s, on host-0 with a grant of 1.0 GiB\n"
                          "class batch, priority 100, held by the planner\n"
                          "why:  WaitingForDevice: class online: 5 requests wait at chat"));
    EXPECT_THAT(text, HasSubstr("then: It comes back by itself when its device is quiet."));
    EXPECT_THAT(text, HasSubstr("It was looked at for others: Preempt for instance/chat"));
    EXPECT_THAT(text, HasSubstr("No decision about it is kept"));
}

TEST(Explain, WithoutAnyDecisionTheStateSpeaks) {
    const std::string text = explanation(instance("Running", "", ""), {}, {}, kNow);
    EXPECT_THAT(text, HasSubstr("nightly is Running since 65s"));
    EXPECT_THAT(text, HasSubstr("No decision about it is kept"));
    EXPECT_THAT(text, Not(HasSubstr("why:")));
}

TEST(Explain, EachReasonNamesTheCommandThatHelps) {
    auto of = [](const std::string& state, const std::string& reason) {
        return explanation(instance(state, reason, "m"), {}, {}, kNow);
    };
    EXPECT_THAT(of("Pending", "OnHold"), HasSubstr("`berth release nightly`"));
    EXPECT_THAT(of("Failed", "CrashLoop"), HasSubstr("/var/lib/berth/nightly.log"));
    EXPECT_THAT(of("Failed", "CrashLoop"), HasSubstr("`berth resume nightly`"));
    EXPECT_THAT(of("Unkillable", "ProcessWontEnd"), HasSubstr("`berth uncordon host-0`"));
    EXPECT_THAT(of("Pending", "DeviceUnavailable"), HasSubstr("`berth uncordon DEVICE`"));
    EXPECT_THAT(of("Pending", "InsufficientMemory"), HasSubstr("berth evict"));
    json::object parked = instance("Paused", "", "");
    parked["heldBy"] = "Operator";
    EXPECT_THAT(explanation(parked, {}, {}, kNow), HasSubstr("`berth resume nightly`"));
}

TEST(Explain, ShowsTheNewestOfItsOwnDecisionsFirstAndOnlyItsLastEvents) {
    json::array decisions;
    for (int n = 1; n <= 5; ++n) {
        json::object one = preempt_decision();
        one["object"] = "instance/nightly";
        one["id"] = "d-" + std::to_string(n);
        decisions.push_back(one);
    }
    json::array events;
    for (int n = 1; n <= 9; ++n)
        events.push_back(json::object{{"time", "T" + std::to_string(n)},
                                      {"object", "instance/nightly"},
                                      {"reason", "R" + std::to_string(n)},
                                      {"message", ""}});
    const std::string text = explanation(instance("Running", "", ""), decisions, events, kNow);
    EXPECT_LT(text.find("d-5"), text.find("d-4"));
    EXPECT_THAT(text, Not(HasSubstr("d-3")));
    EXPECT_THAT(text, HasSubstr("R9"));
    EXPECT_THAT(text, Not(HasSubstr("R4")));
    EXPECT_LT(text.find("R8"), text.find("R9"));
}

TEST(Plan, SaysWhereItWouldRunAndWhatWouldGiveWayInWhichOrder) {
    const json::object answer{
        {"mode", "Enforce"},
        {"instances", json::array{json::object{{"name", "chat"},
                                               {"priorityClass", "online"},
                                               {"priority", 1000},
                                               {"verdict", "Runs"},
                                               {"devices", json::array{"host-0"}},
                                               {"grantBytes", 512ULL << 20},
                                               {"afterMs", 6000},
                                               {"reason", "PreemptExempt"},
                                               {"message", "nightly runs for 4 s only"}}}},
        {"steps", json::array{json::object{{"action", "Offload"},
                                           {"object", "instance/nightly"},
                                           {"device", "host-0"},
                                           {"bytes", 1ULL << 30},
                                           {"why", "for instance/chat"},
                                           {"afterMs", 6000}},
                              json::object{{"action", "Start"},
                                           {"object", "instance/chat"},
                                           {"device", "host-0"},
                                           {"bytes", 512ULL << 20},
                                           {"why", ""},
                                           {"afterMs", 6000}}}},
        {"decisions", json::array{preempt_decision()}},
        {"underWay", json::array{"other is Resuming"}}};
    const std::string text = what_if_text(answer, kNow);
    EXPECT_THAT(text,
                HasSubstr("chat (class online, priority 1000) would run on host-0 with a grant "
                          "of 512.0 MiB, after a wait of 6.00 s (PreemptExempt: nightly runs "
                          "for 4 s only)\n"));
    EXPECT_THAT(text, HasSubstr("   1. Offload  instance/nightly, 1.0 GiB on host-0, for "
                                "instance/chat (after 6.00 s)\n"
                                "   2. Start    instance/chat, 512.0 MiB on host-0"));
    EXPECT_THAT(text, HasSubstr("Taken as done, since it is under way: other is Resuming"));
    EXPECT_THAT(text, HasSubstr("rejected  instance/search"));
    EXPECT_THAT(text, Not(HasSubstr("d-1"))) << "it has not been made";
    EXPECT_THAT(text, HasSubstr("Nothing was changed."));
}

TEST(Plan, SaysWhyItWouldWait) {
    const json::object answer{
        {"mode", "Observe"},
        {"instances",
         json::array{json::object{{"name", "what-if"},
                                  {"priorityClass", "batch"},
                                  {"priority", 100},
                                  {"verdict", "Waits"},
                                  {"devices", json::array{}},
                                  {"reason", "InsufficientMemory"},
                                  {"message", "needs 8.0 GiB on host-0, 1.0 GiB are free"}}}},
        {"steps", json::array{}},
        {"decisions", json::array{}},
        {"underWay", json::array{}}};
    EXPECT_EQ(
        what_if_text(answer, kNow),
        "what-if (class batch, priority 100) would wait: InsufficientMemory: needs 8.0 GiB on "
        "host-0, 1.0 GiB are free\n"
        "The policy's mode is Observe: nothing is preempted or dropped for anybody.\n"
        "\nNothing was changed.\n");
}

} // namespace
} // namespace berth::cli
