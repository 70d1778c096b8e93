// SPDX-License-Identifier: Apache-2.0
// Goal: a plan says what would be done, in order, and changes nothing.
// Method: the planner's own reducer on states that engines were played into.
#include "policies/yaml.h"
#include "scheduler/admin/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace berth {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Verdict = WhatIf::Outcome::Verdict;

constexpr const char* kModel = "kind: Model\nmetadata: {name: tiny}\nspec: {path: /models/tiny}\n";

std::string engine(const std::string& name, const std::string& of_class, const std::string& request,
                   const std::string& limit, const std::string& more = "") {
    return "---\nkind: Instance\nmetadata: {name: " + name + "}\nspec:\n  model: tiny\n" +
           "  priorityClassName: " + of_class + "\n  resources: {requests: {memory: " + request +
           "}, limits: {memory: " + limit + "}}\n  engine: {command: [berth-engine]}\n" + more;
}

policies::Documents documents(const std::string& text) {
    auto read = policies::parse_documents(text, "test.yaml");
    EXPECT_TRUE(read) << (read ? "" : read.error().message);
    return read.value_or(policies::Documents{});
}

// A node whose engines and loaders do at once what they are told.
struct PlayedNode {
    node::NodeState state;
    node::TimePoint now{1h};

    PlayedNode(std::initializer_list<std::pair<const char*, uint64_t>> devices) {
        for (const auto& [id, bytes] : devices)
            (void)node::apply(
                state, node::DeviceSeen{node::DeviceId(id), DeviceKind::kHost, "host", bytes}, now);
    }
    void run(const std::string& text) {
        std::deque<node::Action> to_do;
        auto post = [&](const node::Event& event) {
            for (auto& action : node::apply(state, event, now))
                to_do.push_back(std::move(action));
        };
        post(node::DocumentsApplied{documents(text)});
        for (int pid = 100; !to_do.empty(); ++pid) {
            const node::Action action = std::move(to_do.front());
            to_do.pop_front();
            if (const auto* load = std::get_if<node::StartLoad>(&action)) {
                post(node::LoadPlanned{load->load, "f", node::WeightSetId("tiny"), 1ULL << 30, 0});
            } else if (const auto* go = std::get_if<node::GoLoad>(&action)) {
                post(node::LoadSealed{go->load, "f", node::WeightSetId("tiny"), 1ULL << 30});
            } else if (const auto* keep = std::get_if<node::KeepWeights>(&action)) {
                post(node::LoaderExited{keep->load, "exit code 0"});
            } else if (const auto* start = std::get_if<node::StartProcess>(&action)) {
                post(node::ProcessStarted{start->instance, {pid, 1}, "hash"});
                post(node::SessionOpened{start->instance, {pid, 1}, "engine", "", 0, {}, {}});
                node::EngineStateChanged ready;
                ready.instance = start->instance;
                ready.state = node::EngineState::kReady;
                post(ready);
            }
        }
    }
    WhatIf::Answer ask(const std::string& text, std::vector<std::string> asked) const {
        return WhatIf::play(state, {documents(text), std::move(asked), {}}, now);
    }
};

std::vector<std::string> words(const WhatIf::Answer& answer) {
    std::vector<std::string> all;
    for (const WhatIf::Step& step : answer.steps)
        all.push_back(step.action + " " + step.object + " " + format_bytes_exact(step.bytes));
    return all;
}

TEST(WhatIf, OnAFreeNodeItsWeightsAreLoadedAndItRuns) {
    const PlayedNode node{{"host-0", 4ULL << 30}};
    PlayedNode fresh = node;
    fresh.run(kModel);
    const WhatIf::Answer answer =
        WhatIf::play(fresh.state,
                     {documents(kModel + engine("chat", "online", "512Mi", "1Gi")),
                      {"chat"},
                      {{"/models/tiny", 1ULL << 30}}},
                     fresh.now);
    ASSERT_THAT(answer.outcomes, SizeIs(1));
    EXPECT_EQ(answer.outcomes[0].verdict, Verdict::kRuns);
    EXPECT_THAT(answer.outcomes[0].devices, testing::ElementsAre("host-0"));
    EXPECT_EQ(answer.outcomes[0].grant_bytes, 1ULL << 30);
    EXPECT_THAT(words(answer),
                testing::ElementsAre("Load /models/tiny 1Gi", "Start instance/chat 1Gi"));
}

TEST(WhatIf, SaysWhoGivesWayByHowMuchBeforeItStarts) {
    PlayedNode node{{"host-0", 2ULL << 30}};
    const std::string before = kModel + engine("nightly", "batch", "0", "1Gi");
    node.run(before);
    ASSERT_EQ(node.state.instances.at(node::InstanceName("nightly")).state,
              node::InstanceState::kRunning);
    node.now += 60s; // past its exempt time
    const WhatIf::Answer answer =
        node.ask(before + engine("chat", "online", "512Mi", "512Mi"), {"chat"});
    ASSERT_THAT(answer.outcomes, SizeIs(1));
    EXPECT_EQ(answer.outcomes[0].verdict, Verdict::kRuns) << answer.outcomes[0].message;
    ASSERT_THAT(answer.steps, SizeIs(2));
    EXPECT_EQ(answer.steps[0].object, "instance/nightly");
    EXPECT_GE(answer.steps[0].bytes, 512ULL << 20);
    EXPECT_THAT(answer.steps[0].why, HasSubstr("instance/chat"));
    EXPECT_EQ(answer.steps[1].object, "instance/chat");
    ASSERT_FALSE(answer.decisions.empty());
    EXPECT_EQ(node.state.instances.size(), 1u) << "it was a copy";
    EXPECT_EQ(node.state.instances.begin()->second.state, node::InstanceState::kRunning);
}

TEST(WhatIf, SaysWhyItWouldWaitAndWhoIsNoVictim) {
    PlayedNode node{{"host-0", 2ULL << 30}};
    const std::string before = kModel + engine("chat", "online", "1Gi", "1Gi");
    node.run(before);
    node.now += 60s;
    const WhatIf::Answer answer =
        node.ask(before + engine("nightly", "batch", "512Mi", "512Mi"), {"nightly"});
    ASSERT_THAT(answer.outcomes, SizeIs(1));
    EXPECT_EQ(answer.outcomes[0].verdict, Verdict::kWaits);
    EXPECT_EQ(answer.outcomes[0].reason, "InsufficientMemory");
    EXPECT_THAT(answer.outcomes[0].message, HasSubstr("512.0 MiB"));
    EXPECT_THAT(answer.steps, IsEmpty());
}

TEST(WhatIf, OfTwoDevicesTheOneWithItsWeightsIsTaken) {
    PlayedNode node{{"host-0", 4ULL << 30}, {"host-1", 4ULL << 30}};
    const std::string before =
        kModel + engine("nightly", "batch", "512Mi", "512Mi", "  devices: [host-1]\n");
    node.run(before);
    const WhatIf::Answer answer =
        node.ask(before + engine("chat", "online", "512Mi", "512Mi"), {"chat"});
    ASSERT_THAT(answer.outcomes, SizeIs(1));
    EXPECT_THAT(answer.outcomes[0].devices, testing::ElementsAre("host-1"));
    EXPECT_THAT(words(answer), testing::ElementsAre("Start instance/chat 512Mi"));
}

TEST(WhatIf, WhatRunsAlreadyIsUnchanged) {
    PlayedNode node{{"host-0", 4ULL << 30}};
    const std::string before = kModel + engine("chat", "online", "512Mi", "512Mi");
    node.run(before);
    const WhatIf::Answer answer = node.ask(before, {"chat"});
    ASSERT_THAT(answer.outcomes, SizeIs(1));
    EXPECT_EQ(answer.outcomes[0].verdict, Verdict::kUnchanged);
    EXPECT_THAT(answer.steps, IsEmpty());
}

TEST(WhatIf, APolicyThatOnlyObservesPreemptsNobody) {
    PlayedNode node{{"host-0", 2ULL << 30}};
    const std::string before =
        std::string("kind: ColocationPolicy\nmetadata: {name: p}\nspec: {mode: Observe}\n---\n") +
        kModel + engine("nightly", "batch", "0", "1Gi");
    node.run(before);
    node.now += 60s;
    const WhatIf::Answer answer =
        node.ask(before + engine("chat", "online", "512Mi", "512Mi"), {"chat"});
    ASSERT_THAT(answer.outcomes, SizeIs(1));
    EXPECT_EQ(answer.outcomes[0].verdict, Verdict::kWaits);
    EXPECT_THAT(answer.steps, IsEmpty());
}

TEST(WhatIf, WhatIsUnderWayIsTakenAsDone) {
    PlayedNode node{{"host-0", 2ULL << 30}};
    const std::string before = kModel + engine("nightly", "batch", "0", "1Gi");
    node.run(before);
    node.now += 60s;
    (void)node::apply(node.state,
                      node::OperatorPreempt{node::OperationId("op"), node::InstanceName("nightly"),
                                            policies::Rung::kEvict, std::nullopt, "", false},
                      node.now);
    const WhatIf::Answer answer =
        node.ask(before + engine("chat", "online", "512Mi", "512Mi"), {"chat"});
    EXPECT_THAT(answer.under_way, testing::Contains(HasSubstr("nightly is Preempting")));
    ASSERT_THAT(answer.outcomes, SizeIs(1));
    EXPECT_EQ(answer.outcomes[0].verdict, Verdict::kRuns);
    EXPECT_THAT(words(answer), testing::ElementsAre("Start instance/chat 512Mi"));
}

} // namespace
} // namespace berth
