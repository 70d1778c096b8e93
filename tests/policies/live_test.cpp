// SPDX-License-Identifier: Apache-2.0
// Goal: every field that can be changed on a running node does what it says from then on, and a
// field that is added later cannot be forgotten here. Method: the fields that the readers ask for
// (the JSON Schema is made of the same) are held against a table: the scenarios in live/, each of
// which must change its field and see the effect; the cases below, which scenarios cannot say; the
// tests elsewhere of what acts outside of the reducer.
#include "tests/policies/live_scenarios.h"

#include "policies/yaml.h"
#include "scheduler/node/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <unistd.h>

namespace berth::policies::test {

namespace {

std::filesystem::path scratch() {
    static const std::filesystem::path folder = [] {
        std::filesystem::path path = testing::TempDir();
        path /= "berth-live-" + std::to_string(::getpid());
        std::filesystem::create_directories(path);
        return path;
    }();
    return folder;
}

const std::vector<LiveScenario>& scenarios() {
    static const std::vector<LiveScenario> all = read_live_scenarios(BERTH_LIVE, scratch());
    return all;
}

// Field -> {file under tests/, a test's name in it}.
using Elsewhere = std::map<std::string, std::pair<std::string, std::string>>;
const Elsewhere& elsewhere() {
    static const Elsewhere all{
        {"ColocationPolicy.spec.triggers[].percentile",
         {"policies/live_test.cpp", "APercentileOfATriggerHoldsAtOnce"}},
        {"Instance.spec.slo.percentile",
         {"policies/live_test.cpp", "APercentileOfAnSloHoldsFromTheNextReportOn"}},
        {"ColocationPolicy.spec.resume.verify.canary",
         {"policies/live_test.cpp", "TheNextRestoreIsToldWhetherToReproduceTheCanary"}},
        {"ColocationPolicy.spec.tenants[].users",
         {"admin/tenant_gate_test.cpp", "ChangedListsOfATenantHoldFromTheNextAttachOn"}},
        {"ColocationPolicy.spec.tenants[].mayAttach",
         {"admin/tenant_gate_test.cpp", "ChangedListsOfATenantHoldFromTheNextAttachOn"}},
        {"ColocationPolicy.spec.attach.onMismatch",
         {"system/test_instances.py",
          "test_the_next_engine_is_told_what_to_do_without_a_shared_set"}},
        {"ColocationPolicy.spec.attach.onChange",
         {"system/test_instances.py",
          "test_a_changed_checkpoint_is_loaded_anew_once_the_policy_says_so"}},
        {"ColocationPolicy.spec.sharing.compute",
         {"system/test_sharing.py",
          "test_a_change_that_takes_the_gate_away_reaches_engines_that_run"}},
        {"ColocationPolicy.spec.sharing.batchShareWhenBusy",
         {"system/test_sharing.py", "test_batch_stands_while_online_works_unless_it_has_a_share"}},
        {"ColocationPolicy.spec.attach.verifyCanary",
         {"system/test_publish.py", "test_an_instance_that_reports_no_canary_is_not_called_ready"}},
    };
    return all;
}

// Fields that nobody can change, each with the reason.
const std::map<std::string, std::string>& fixed() {
    static const std::map<std::string, std::string> all{
        {"ColocationPolicy.spec.priorityClasses[].name", "identity: another name, another class"},
        {"ColocationPolicy.spec.tenants[].name", "identity: another name, another tenant"},
    };
    return all;
}

} // namespace

class Live : public testing::TestWithParam<LiveScenario> {};

TEST_P(Live, Holds) {
    const LiveScenario& one = GetParam();
    ASSERT_EQ(one.wrong, "");
    // Of engine.environment the names are anybody's.
    EXPECT_TRUE(std::ranges::any_of(one.changed,
                                    [&](const std::string& field) {
                                        return field == one.field ||
                                               field.starts_with(one.field + ".");
                                    }))
        << one.played.where << ": no `when changed` line changes " << one.field << ", but "
        << testing::PrintToString(one.changed);
    node::test::Runner runner(scratch().string());
    EXPECT_EQ(runner.run(one.played), "");
}

std::string test_name(const testing::TestParamInfo<LiveScenario>& info) {
    std::string name;
    for (char c : info.param.played.name)
        name += (std::isalnum(static_cast<unsigned char>(c)) != 0) ? c : '_';
    return name;
}

void PrintTo(const LiveScenario& scenario, std::ostream* out) {
    *out << scenario.played.where;
}

INSTANTIATE_TEST_SUITE_P(All, Live, testing::ValuesIn(scenarios()), test_name);

TEST(LiveTable, EveryFieldHasATestThatChangesItAndNoEntryIsLeftOver) {
    std::set<std::string> tested;
    for (const LiveScenario& one : scenarios())
        tested.insert(one.field);
    for (const auto& [field, where] : elsewhere()) {
        EXPECT_TRUE(tested.insert(field).second) << field << " is in the table twice";
        std::ifstream in(std::filesystem::path(BERTH_LIVE) / "../.." / where.first);
        std::stringstream text;
        text << in.rdbuf();
        EXPECT_NE(text.str().find(where.second), std::string::npos)
            << field << ": tests/" << where.first << " has no test " << where.second;
    }
    for (const auto& [field, why] : fixed())
        EXPECT_TRUE(tested.insert(field).second) << field << " is in the table twice";
    const std::set<std::string> fields = live_fields();
    EXPECT_GT(fields.size(), 60U);
    for (const std::string& field : fields)
        EXPECT_TRUE(tested.contains(field))
            << field << ": nothing shows that it can be changed on a running node; write a "
            << "scenario in tests/policies/live whose name begins with it";
    for (const std::string& field : tested)
        EXPECT_TRUE(fields.contains(field)) << field << " is no field";
}

namespace {

using node::EngineReport;
using node::InstanceName;

// One host device with an online engine and a batch one on it, both Running.
class RunningNode {
  public:
    explicit RunningNode(const std::string& policy) {
        event(node::DeviceSeen{node::DeviceId("host-0"), DeviceKind::kHost, "host",
                               uint64_t{4} << 30});
        node::WeightsAdopted tiny;
        tiny.id = node::WeightSetId("tiny");
        tiny.path = "/models/tiny";
        tiny.device = node::DeviceId("host-0");
        tiny.bytes = uint64_t{1} << 30;
        event(tiny);
        apply(policy);
        for (const char* name : {"chat", "nightly"}) {
            const node::ProcessRef process{name[0], 1};
            event(node::ProcessStarted{InstanceName(name), process, "hash"});
            event(node::SessionOpened{InstanceName(name), process, "engine", "", 0, {}, {}});
            node::EngineStateChanged ready;
            ready.instance = InstanceName(name);
            ready.state = node::EngineState::kReady;
            event(ready);
        }
    }
    void apply(const std::string& policy) {
        const Result<Documents> read = parse_documents(
            "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {" + policy +
                "}\n---\nkind: Model\nmetadata: {name: tiny}\nspec: {path: /models/tiny}\n" +
                instance("chat", "online", slo_) + instance("nightly", "batch", ""),
            "live.yaml");
        ASSERT_TRUE(read) << read.error().message;
        event(node::DocumentsApplied{*read});
    }
    void promise(const std::string& slo, const std::string& policy) {
        slo_ = slo;
        apply(policy);
    }
    // Latencies that differ above the 95th percentile only.
    void report_a_slow_tail() {
        EngineReport report;
        report.instance = InstanceName("chat");
        report.counters.requests_running = 1;
        for (size_t n = 0; n < node::kPercentiles.size(); ++n)
            report.counters.ttft_ms.at(n) = node::kPercentiles.at(n) > 95 ? 500 : 50;
        event(report);
    }
    void event(const node::Event& event) { actions_ = node::apply(state_, event, now_); }
    const node::SendCommand* told(const std::string& name) const {
        for (const node::Action& action : actions_)
            if (const auto* command = std::get_if<node::SendCommand>(&action))
                if (command->instance.value == name)
                    return command;
        return nullptr;
    }
    const node::Instance& at(const std::string& name) const {
        return state_.instances.at(InstanceName(name));
    }

  private:
    static std::string instance(const std::string& name, const std::string& of_class,
                                const std::string& slo) {
        return "---\nkind: Instance\nmetadata: {name: " + name +
               "}\nspec: {model: tiny, priorityClassName: " + of_class + slo +
               ", resources: {requests: {memory: 512Mi}}, engine: {command: [e]}}\n";
    }
    node::NodeState state_;
    node::TimePoint now_{std::chrono::hours(1)};
    std::vector<node::Action> actions_;
    std::string slo_;
};

std::string burning_above(const std::string& percentile) {
    return "triggers: [{class: online, on: SLOBurn, metric: ttft, percentile: " + percentile +
           ", target: 200ms}]";
}

} // namespace

TEST(LiveFields, APercentileOfATriggerHoldsAtOnce) {
    RunningNode node(burning_above("95"));
    node.report_a_slow_tail();
    EXPECT_EQ(node.told("nightly"), nullptr);
    node.apply(burning_above("99"));
    ASSERT_NE(node.told("nightly"), nullptr);
    EXPECT_EQ(node.told("nightly")->kind, node::CommandKind::kPause);
}

TEST(LiveFields, APercentileOfAnSloHoldsFromTheNextReportOn) {
    RunningNode node("");
    node.promise(", slo: {ttft: 200ms, percentile: 95}", "");
    node.report_a_slow_tail();
    EXPECT_FALSE(node.at("chat").burning);
    node.promise(", slo: {ttft: 200ms, percentile: 99}", "");
    node.report_a_slow_tail();
    EXPECT_TRUE(node.at("chat").burning);
}

TEST(LiveFields, TheNextRestoreIsToldWhetherToReproduceTheCanary) {
    for (const bool canary : {false, true}) {
        const auto policy = [](bool wanted) {
            return std::string("resume: {verify: {canary: ") + (wanted ? "true" : "false") + "}}";
        };
        RunningNode node(policy(!canary));
        node.event(node::OperatorPreempt{node::OperationId("p"), InstanceName("nightly"),
                                         Rung::kOffload, std::nullopt, "", false});
        ASSERT_NE(node.told("nightly"), nullptr);
        node.event(node::CommandDone{
            InstanceName("nightly"), node.told("nightly")->command, std::nullopt, 0, 0, 0, 0, {}});
        node.event(node::BytesConfirmed{InstanceName("nightly"), 0});
        node.apply(policy(canary));
        node.event(
            node::OperatorResume{node::OperationId("r"), InstanceName("nightly"), "", false});
        ASSERT_NE(node.told("nightly"), nullptr);
        EXPECT_EQ(node.told("nightly")->kind, node::CommandKind::kRestore);
        EXPECT_EQ(node.told("nightly")->canary, canary);
    }
}

} // namespace berth::policies::test
