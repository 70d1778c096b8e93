// SPDX-License-Identifier: Apache-2.0
// Goal: what engines fill themselves is asked for, counted and given back as a load's bytes are,
// and a canary stands between Starting and Running. Method: events in, actions and ledger out.
#include "policies/yaml.h"
#include "scheduler/node/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace berth::node {
namespace {

const DeviceId kHost("host-0");
const WeightSetId kSet("0123456789abcdef");

class PublishTest : public ::testing::Test {
  protected:
    PublishTest() {
        give(DeviceSeen{kHost, DeviceKind::kHost, "", 1000});
        give(DocumentsApplied{policies::parse_documents("", "none.yaml").value()});
    }
    void give(const Event& event) {
        actions_ = apply(state_, event, TimePoint{});
        for (const std::string& wrong : check_invariants(state_))
            ADD_FAILURE() << wrong;
    }
    template <typename Kind>
    const Kind* find() const {
        for (const Action& action : actions_)
            if (const auto* found = std::get_if<Kind>(&action))
                return found;
        return nullptr;
    }
    PublishRequested asked(uint64_t number, uint64_t bytes) const {
        PublishRequested event;
        event.publication = number;
        event.set = kSet;
        event.device = kHost;
        event.holder = "pid 1 (a test)";
        event.bytes = bytes;
        return event;
    }
    uint64_t free() const { return usage(state_, kHost).free_bytes; }
    LoadId begin(const PublishRequested& event) {
        give(event);
        const auto* answered = find<PublicationAnswered>();
        EXPECT_TRUE(answered != nullptr && answered->load && find<GoLoad>() != nullptr);
        return answered->load.value_or(LoadId{});
    }

    NodeState state_;
    std::vector<Action> actions_;
};

TEST_F(PublishTest, IsCountedFromGoOnAndAsASetOnceSealed) {
    const LoadId load = begin(asked(1, 600));
    EXPECT_EQ(free(), 400U);
    give(LoadSealed{load, "f", kSet, 600});
    ASSERT_NE(find<KeepWeights>(), nullptr);
    EXPECT_TRUE(is_published(*find<KeepWeights>()->set.keys.begin()));
    EXPECT_EQ(free(), 400U);
    give(LoaderExited{load, "sealed"});
    EXPECT_EQ(free(), 400U);
    EXPECT_TRUE(state_.loads.empty());
}

TEST_F(PublishTest, BytesStayCountedUntilTheirProcessHasThemNoLonger) {
    const LoadId load = begin(asked(1, 600));
    give(LoadFailed{load, Error{ErrorCode::kUnavailable, "its session ended", "PublisherDied", 0}});
    EXPECT_EQ(free(), 400U);
    give(LoaderExited{load, "ended"});
    EXPECT_EQ(free(), 1000U);
}

TEST_F(PublishTest, ASecondOneIsToldWhereTheSetIs) {
    const LoadId load = begin(asked(1, 600));
    give(asked(2, 600));
    ASSERT_NE(find<PublicationAnswered>(), nullptr);
    EXPECT_EQ(find<PublicationAnswered>()->error->reason, "BeingPublished");
    give(LoadSealed{load, "f", kSet, 600});
    give(asked(3, 600));
    EXPECT_EQ(find<PublicationAnswered>()->error->reason, "AlreadyPublished");
}

TEST_F(PublishTest, WhatDoesNotFitIsRefusedUnlessItIsThereAlready) {
    for (uint64_t absurd : {uint64_t{1001}, UINT64_MAX}) {
        give(asked(1, absurd));
        ASSERT_TRUE(find<PublicationAnswered>()->error);
        EXPECT_EQ(find<PublicationAnswered>()->error->reason, "InsufficientMemory");
        EXPECT_EQ(free(), 1000U);
    }
    PublishRequested held = asked(2, 900);
    held.set = WeightSetId("fedcba9876543210");
    held.held = true;
    begin(held);
    EXPECT_EQ(free(), 100U);
    // Nobody holds what the device does not have.
    for (uint64_t absurd : {uint64_t{1001}, UINT64_MAX, UINT64_MAX - 899}) {
        held.publication = 3;
        held.set = WeightSetId("0000000000000001");
        held.bytes = absurd;
        give(held);
        EXPECT_EQ(find<PublicationAnswered>()->error->reason, "InsufficientMemory");
        EXPECT_EQ(free(), 100U);
    }
}

// What an engine says it has from before an earlier berthd's end.
TEST_F(PublishTest, HeldBytesCountAlsoWhereSomebodyElsePublishesTheSet) {
    const LoadId first = begin(asked(1, 300));
    PublishRequested held = asked(2, 300);
    held.held = true;
    auto said_again = [&](uint64_t number, const std::string& reason) {
        held.publication = number;
        give(held);
        const auto* answered = find<PublicationAnswered>();
        EXPECT_TRUE(answered != nullptr && answered->error && answered->load);
        EXPECT_EQ(answered->error->reason, reason);
        return answered->load.value();
    };
    const LoadId besides = said_again(2, "BeingPublished");
    EXPECT_EQ(free(), 400U);
    // It is in nobody's way: the first seals, whatever it does.
    give(LoadSealed{first, "f", kSet, 300});
    ASSERT_NE(find<KeepWeights>(), nullptr);
    give(LoaderExited{first, "sealed"});
    EXPECT_EQ(free(), 400U);
    give(PrivateLoadEnded{besides});
    EXPECT_EQ(free(), 700U);
    const LoadId after = said_again(3, "AlreadyPublished");
    EXPECT_EQ(free(), 400U);
    give(PrivateLoadEnded{after});
    EXPECT_EQ(free(), 700U);
}

TEST_F(PublishTest, HeldBytesThatOthersWereGivenCountAsFarAsThereIsAnyLeft) {
    begin(asked(1, 900));
    for (bool is_private : {false, true}) {
        PublishRequested held = asked(2, 300);
        held.set = WeightSetId("fedcba9876543210");
        held.held = true;
        held.is_private = is_private;
        give(held);
        const auto* answered = find<PublicationAnswered>();
        ASSERT_TRUE(answered->error && answered->load);
        EXPECT_EQ(answered->error->reason, "InsufficientMemory");
        const LoadId load = *answered->load;
        EXPECT_EQ(free(), 0U);
        give(PrivateLoadEnded{load});
        EXPECT_EQ(free(), 100U);
    }
}

TEST_F(PublishTest, APrivateLoadsOverheadIsFreeOnceItsLoaderHasEnded) {
    PublishRequested event = asked(1, 300);
    event.is_private = true;
    event.overhead_bytes = 500;
    const LoadId load = begin(event);
    EXPECT_EQ(free(), 200U);
    give(PrivateLoadFilled{load});
    EXPECT_EQ(free(), 700U);
    give(PrivateLoadEnded{load});
    EXPECT_EQ(free(), 1000U);
    event.overhead_bytes = UINT64_MAX;
    give(event);
    EXPECT_EQ(find<PublicationAnswered>()->error->reason, "InsufficientMemory");
}

TEST_F(PublishTest, APrivateLoadIsCountedUnderItsOwnerUntilItEnds) {
    PublishRequested event = asked(1, 300);
    event.is_private = true;
    const LoadId load = begin(event);
    EXPECT_EQ(free(), 700U);
    const auto lines = usage(state_, kHost).lines;
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(),
                            [](const LedgerLine& line) { return line.owner == "pid 1 (a test)"; }));
    // Two of one engine are two.
    event.publication = 2;
    begin(event);
    EXPECT_EQ(free(), 400U);
    give(PrivateLoadEnded{load});
    EXPECT_EQ(free(), 700U);
}

TEST_F(PublishTest, AnIdleSetGoesForOneThatIsPublished) {
    const LoadId load = begin(asked(1, 600));
    give(LoadSealed{load, "f", kSet, 600});
    give(LoaderExited{load, "sealed"});
    PublishRequested next = asked(2, 700);
    next.set = WeightSetId("fedcba9876543210");
    give(next);
    ASSERT_NE(find<DropWeights>(), nullptr);
    EXPECT_EQ(find<GoLoad>(), nullptr) << "its bytes are not free yet";
    give(WeightsDropped{kSet, kHost});
    EXPECT_NE(find<GoLoad>(), nullptr);
    EXPECT_EQ(free(), 300U);
}

constexpr const char* kServed = R"(
kind: Instance
metadata: {name: served}
spec: {model: m, resources: {limits: {memory: 64Mi}}, engine: {command: [e]}}
---
kind: Model
metadata: {name: m}
spec: {path: /models/m}
)";

class CanaryTest : public PublishTest {
  protected:
    CanaryTest() {
        give(DeviceSeen{kHost, DeviceKind::kHost, "", 1ULL << 30});
        WeightsAdopted own;
        own.id = WeightSetId("aaaaaaaaaaaaaaaa");
        own.device = kHost;
        own.bytes = 1000;
        own.path = "/models/m";
        give(own);
        give(DocumentsApplied{policies::parse_documents(kServed, "served.yaml").value()});
        give(ProcessStarted{kName, ProcessRef{10, 1}, "h"});
        give(SessionOpened{kName, ProcessRef{10, 1}, "e", "", 0, EngineState::kStarting, {}});
        give(CanaryExpected{kName, kSet});
    }
    void ready() {
        EngineStateChanged event;
        event.instance = kName;
        event.state = EngineState::kReady;
        give(event);
    }
    const Instance& served() const { return state_.instances.at(kName); }
    const InstanceName kName{"served"};
};

TEST_F(CanaryTest, ReadyCountsOnceItWasReproduced) {
    ready();
    EXPECT_EQ(served().state, InstanceState::kStarting);
    EXPECT_EQ(served().reason, "CanaryDue");
    give(CanaryReported{kName, kSet, "right", "right"});
    EXPECT_EQ(served().state, InstanceState::kRunning);
}

TEST_F(CanaryTest, ADifferentDigestEndsItForGoodWithBoth) {
    give(CanaryReported{kName, kSet, "right", "wrong"});
    ASSERT_NE(find<KillProcess>(), nullptr);
    ready();
    EXPECT_EQ(served().state, InstanceState::kStarting);
    give(ProcessExited{kName, ProcessRef{10, 1}, false, "killed by SIGKILL", ""});
    EXPECT_EQ(served().state, InstanceState::kFailed);
    EXPECT_EQ(served().reason, "CanaryMismatch");
    EXPECT_NE(served().message.find("wrong"), std::string::npos);
    EXPECT_NE(served().message.find("right"), std::string::npos);
}

} // namespace
} // namespace berth::node
