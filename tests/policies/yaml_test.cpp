// SPDX-License-Identifier: Apache-2.0
// Goal: what is written is read as it was meant, or refused with the place, the text and the
// nearest known name. Method: small documents with one fault each; whole ones read, printed and
// read again.
#include "policies/yaml.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace berth::policies {

namespace {

constexpr const char* kModel = "kind: Model\nmetadata: {name: m}\nspec: {path: /m}\n";

std::string instance(const std::string& spec) {
    return std::string(kModel) +
           "---\nkind: Instance\nmetadata: {name: i}\nspec:\n  model: m\n  resources: {limits: "
           "{memory: 1Gi}}\n  engine: {command: [e]}\n" +
           spec;
}
std::string error_of(const std::string& text) {
    const Result<Documents> read = parse_documents(text, "f.yaml");
    return read ? "no error" : read.error().message;
}
Documents read(const std::string& text) {
    Result<Documents> documents = parse_documents(text, "f.yaml");
    EXPECT_TRUE(documents) << documents.error().message;
    return documents ? *documents : Documents{};
}

} // namespace

TEST(Yaml, DefaultsAreFilledIn) {
    const Documents documents = read(instance(""));
    ASSERT_EQ(documents.instances.size(), 1U);
    const InstanceSpec& i = documents.instances[0];
    EXPECT_EQ(i.class_name, "batch");
    EXPECT_EQ(i.memory_request_bytes, 0U);
    EXPECT_EQ(i.memory_limit_bytes, 1ULL << 30);
    EXPECT_EQ(i.engine.start_deadline, std::chrono::seconds(120));
    EXPECT_EQ(i.restart, RestartPolicy::kOnFailure);
    EXPECT_EQ(documents.models[0].dtype, "auto");
    EXPECT_EQ(documents.effective_policy(), default_policy());
}

TEST(Yaml, AnEmptyPolicyIsTheDefaultOne) {
    PolicySpec given = *read("kind: ColocationPolicy\nmetadata: {name: node-default}\n").policy;
    EXPECT_EQ(given, default_policy());
}

TEST(Yaml, AnInstanceIsTakenOutOfATextAndTheOthersKeepTheirPlaces) {
    const auto instance = [](const std::string& name) {
        return "kind: Instance\nmetadata: {name: " + name +
               "}\nspec:\n  engine:\n    driver: process\n    command: [sh, -c, \"a --- b\"]\n";
    };
    const std::string text = "# all of them\n" + instance("a") + "---\n" + instance("b") +
                             "--- # third\n" + instance("c") + "...\n";
    for (const char* name : {"a", "b", "c"}) {
        const std::string left = without_instance(text, name);
        EXPECT_EQ(std::ranges::count(left, '\n'), std::ranges::count(text, '\n')) << name;
        const Result<Documents> read = parse_fragment(left, "f");
        ASSERT_TRUE(read) << name << ": " << read.error().message << "\n" << left;
        const Documents all = parse_fragment(text, "f").value();
        ASSERT_EQ(read->instances.size(), 2U) << name;
        EXPECT_EQ(read->find_instance(name), nullptr);
        for (const InstanceSpec& one : read->instances)
            EXPECT_EQ(one.origin.text(), all.find_instance(one.name)->origin.text());
    }
    EXPECT_EQ(without_instance(text, "d"), text);
    const std::string directed =
        "%YAML 1.2\n---\n" + instance("a") + "...\n%YAML 1.2\n---\n" + instance("b");
    for (const char* name : {"a", "b"}) {
        const Result<Documents> read = parse_fragment(without_instance(directed, name), "f");
        ASSERT_TRUE(read) << name << ": " << read.error().message;
        EXPECT_EQ(read->instances.size(), 1U);
    }
    EXPECT_EQ(without_instance("", "a"), "");
    EXPECT_TRUE(parse_fragment(without_instance(instance("a"), "a"), "f")->instances.empty());
    const std::string json = R"({"kind": "Instance", "metadata": {"name": "j"}, "spec":
        {"engine": {"driver": "process", "command": ["a"]}}})";
    EXPECT_TRUE(parse_fragment(without_instance(json, "j"), "f")->instances.empty());
}

TEST(Yaml, AGraceThatIsNotGivenIsNoLongerThanAShortDeadline) {
    const auto grace_of = [](const std::string& preemption) {
        return read("kind: ColocationPolicy\nmetadata: {name: p}\nspec: {preemption: {" +
                    preemption + "}}\n")
            .policy->preemption.grace_period;
    };
    EXPECT_EQ(grace_of("reclaimDeadline: 50ms"), std::chrono::milliseconds(50));
    EXPECT_EQ(grace_of("reclaimDeadline: 5s"), std::chrono::milliseconds(200));
    EXPECT_EQ(grace_of("reclaimDeadline: 5s, gracePeriod: 5s"), std::chrono::seconds(5));
}

TEST(Yaml, ThePolicyOfTheDesignReadsAndPrintsBackEqual) {
    const std::string text = R"(apiVersion: berth/v1
kind: ColocationPolicy
metadata: {name: node-default}
spec:
  mode: Observe
  priorityClasses:
    - {name: online, value: 1000, preemptionPolicy: PreemptLowerPriority, preemptible: false}
    - {name: batch,  value: -5, globalDefault: true, preemptionPolicy: Never, preemptible: true}
  triggers:
    - {class: online, on: RequestArrival}
    - {class: online, on: QueueDepth, above: 4, for: 50ms}
    - {class: online, on: SLOBurn, metric: ttft, percentile: 99.5, target: 200ms}
    - {class: batch, on: Schedule, cron: "* 0-6,22-23 * * *"}
  preemption:
    preemptMode: [Pause, Offload]
    fallback: None
    reclaimDeadline: 1500ms
    gracePeriod: 250ms
    preemptExemptTime: 11s
    minPriorityDelta: 11
    victimOrder: [YoungestFirst]
    disruptionBudget: {maxPreemptions: 13, window: 9m}
    kvOnOffload: Drop
  resume:
    after: {onlineIdle: 3s}
    memoryMargin: 1Gi
    verify: {canary: false, timeout: 31s}
    onFailure: Evict
  attach: {verifyCanary: true, onMismatch: Disk, onChange: Refuse}
  sharing: {compute: TimeSlice, batchShareWhenBusy: 15%}
  starvation: {maxSuspendedTime: 31m, action: BoostPriority}
  placement: {strategy: Pack}
  memory: {deviceReserve: 1Gi, hostPinnedLimit: 63Gi, hostTier: 31Gi, imageDir: /var/images, imageLimit: 127Gi}
  tenants:
    - {name: search, users: [svc-search], mayAttach: ["m"], maxDeviceMemory: 60Gi}
    - {name: ads, users: ["1001", svc-ads]}
---
kind: Model
metadata: {name: m}
spec: {path: /models/m, dtype: bfloat16, quantization: none, tensorParallel: 1, pin: true}
---
kind: Instance
metadata: {name: chat}
spec:
  model: m
  priorityClassName: online
  tenant: search
  devices: [host-0]
  resources: {requests: {memory: 24Gi}, limits: {memory: 100Gi}}
  slo: {ttft: 200ms, tpot: 40ms, percentile: 99}
  restart: Always
  engine:
    driver: berth
    command: ["berth-engine", "--quote", "a \"b\" \\ \t", "yes"]
    user: nobody
    environment: {A: "1", B: "x y"}
    workingDirectory: /tmp
    startDeadline: 90s
---
kind: Instance
metadata: {name: training}
spec:
  devices: [host-1, host-0]
  deviceCount: 2
  resources: {requests: {memory: 1Gi}}
  slo: {tpot: 40ms, percentile: 100}
  engine: {driver: process, command: [train]}
---
kind: Node
metadata: {name: gpu-17}
spec:
  socket: /run/berth/berthd.sock
  group: berth
  stateDir: /var/lib/berth
  devices: {host: [{name: host-0, memory: 4Gi}, {name: host-1, memory: 1536Mi}]}
  keeper: systemd
  policies: [/etc/berth/policies]
  adminTcp: {listen: "127.0.0.1:7070", tokenFile: /etc/berth/token}
)";
    const Documents first = read(text);
    EXPECT_EQ(first.policy->preemption.reclaim_deadline, std::chrono::milliseconds(1500));
    EXPECT_TRUE(first.policy->attach.verify_canary);
    EXPECT_EQ(first.policy->attach.on_mismatch, OnMismatch::kDisk);
    EXPECT_EQ(first.policy->classes[1].value, -5);
    EXPECT_DOUBLE_EQ(first.policy->sharing.batch_share_when_busy, 0.15);
    EXPECT_EQ(first.policy->tenants[0].device_memory_bytes_max, 60ULL << 30);
    EXPECT_EQ(first.instances[0].engine.command[2], "a \"b\" \\ \t");
    EXPECT_EQ(first.policy->tenants[1].device_memory_bytes_max, 0U);
    EXPECT_EQ(first.policy->placement.strategy, PlacementStrategy::kPack);
    EXPECT_EQ(first.instances[1].device_count, 2U);
    EXPECT_EQ(first.instances[1].memory_limit_bytes, 1ULL << 30);
    EXPECT_EQ(first.instances[0].slo->ttft, std::chrono::milliseconds(200));
    EXPECT_EQ(first.node->devices.host[1].memory_bytes, 1536ULL << 20);
    const std::string printed = effective_yaml(first);
    const Documents second = read(printed);
    EXPECT_EQ(first, second) << printed;
    EXPECT_EQ(effective_yaml(second), printed);
}

// A rollout's document is kept as it is printed, and its Model may become one of other ranks later.
TEST(Yaml, DevicesThatFollowTheModelAreNoNumberWhenPrinted) {
    const auto model = [](const std::string& ranks) {
        return "kind: Model\nmetadata: {name: m}\nspec: {path: /m, tensorParallel: " + ranks +
               "}\n---\n";
    };
    const std::string instance = "kind: Instance\nmetadata: {name: i}\nspec:\n  model: m\n"
                                 "  resources: {limits: {memory: 1Gi}}\n"
                                 "  engine: {command: [e]}\n";
    const Documents one = read(model("1") + instance);
    EXPECT_EQ(one.instances[0].device_count, 1U);
    const Documents two = read(model("2") + effective_yaml(one.instances[0]));
    EXPECT_EQ(two.instances[0].ranks, 2U);
    EXPECT_EQ(two.instances[0].device_count, 2U);
    const Documents again = read(model("1") + effective_yaml(two.instances[0]));
    EXPECT_EQ(again.instances[0], one.instances[0]);

    const Documents shared = read(model("1") + instance + "  deviceCount: 1\n");
    const Documents sharing = read(model("2") + effective_yaml(shared.instances[0]));
    EXPECT_EQ(sharing.instances[0].device_count, 1U);
}

TEST(Yaml, PathsAreRelativeToTheirFile) {
    const Result<Documents> documents = parse_documents(
        "kind: Model\nmetadata: {name: m}\nspec: {path: ../models/m}\n---\nkind: Instance\n"
        "metadata: {name: i}\nspec: {engine: {driver: process, command: [a], workingDirectory: "
        "jobs}}\n",
        "/etc/berth/a.yaml");
    ASSERT_TRUE(documents);
    EXPECT_EQ(documents->models[0].path, "/etc/models/m");
    EXPECT_EQ(documents->instances[0].engine.working_directory, "/etc/berth/jobs");
}

TEST(Yaml, AnUpdateReplacesByKindAndNameAndIsCheckedAsAWhole) {
    const Documents base = read(instance(""));
    const Result<Documents> update = parse_fragment(
        "kind: Instance\nmetadata: {name: j}\nspec: {model: m, resources: {limits: {memory: 2Gi}}, "
        "engine: {command: [e]}}\n",
        "g.yaml");
    ASSERT_TRUE(update);
    Documents whole = overlay(base, *update);
    ASSERT_TRUE(check_documents(whole));
    EXPECT_EQ(whole.instances.size(), 2U);
    EXPECT_EQ(whole.find_instance("j")->class_name, "batch");
    whole.models.clear();
    EXPECT_FALSE(check_documents(whole));
}

TEST(Yaml, FoldersAreReadByNameAndNameBothPlacesOfADuplicate) {
    const auto folder =
        std::filesystem::temp_directory_path() / ("berth-yaml-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "a.yaml") << kModel;
    std::ofstream(folder / "notes.txt") << "not: [yaml";
    Result<Documents> one = load_paths({folder.string()});
    ASSERT_TRUE(one) << one.error().message;
    EXPECT_EQ(one->models.size(), 1U);
    std::ofstream(folder / "b.yml") << kModel;
    const Result<Documents> two = load_paths({folder.string()});
    ASSERT_FALSE(two);
    EXPECT_NE(two.error().message.find("b.yml:1:1"), std::string::npos) << two.error().message;
    EXPECT_NE(two.error().message.find("a.yaml:1:1"), std::string::npos) << two.error().message;
    std::filesystem::remove(folder / "b.yml");
    std::filesystem::create_directory(folder / "c.yaml");
    EXPECT_NE(load_paths({folder.string()}).error().message.find("c.yaml: not a file"),
              std::string::npos);
    std::filesystem::remove_all(folder);
    const Result<Documents> gone = load_paths({folder.string()});
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
}

TEST(Yaml, DeepNestingIsRefusedAndNotFatal) {
    EXPECT_NE(error_of("kind: " + std::string(100000, '[')), "no error");
    EXPECT_NE(error_of(std::string(2 << 20, 'a')).find("at most"), std::string::npos);
}

TEST(Yaml, TextsThatNeverEndForTheParserAreRefused) {
    for (const char* text : {",", ",-", ",:", ",,", "[]]", "-\n,", "- a\n]", "a: b\n}"})
        EXPECT_NE(error_of(text), "no error") << text;
    EXPECT_NE(error_of("kind: &a Model\nmetadata: {name: m}\nspec: {path: *a}\n")
                  .find("f.yaml:3:14: aliases"),
              std::string::npos);
}

TEST(Yaml, TheShippedConfigurationsAreValid) {
    const std::string configs = std::string(BERTH_CONFIGS);
    for (const char* file : {"/node-host.yaml", "/node-gpu.yaml"}) {
        const Result<Documents> node = load_paths({configs + file});
        ASSERT_TRUE(node) << node.error().message;
        ASSERT_TRUE(node->node);
        EXPECT_EQ(node->node->policies, std::vector<std::string>{configs + "/policies"});
    }
    const Result<Documents> policies = load_paths({configs + "/policies"});
    ASSERT_TRUE(policies) << policies.error().message;
    // The file shows the defaults, so it must not differ from them.
    EXPECT_EQ(*policies->policy, default_policy());
}

TEST(Yaml, EachExampleIsValidAndWithoutAdviceAndReadsBackEqual) {
    size_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(BERTH_CONFIGS) + "/policies/examples")) {
        const Result<Documents> read_once = load_paths({entry.path().string()});
        ASSERT_TRUE(read_once) << read_once.error().message;
        ASSERT_TRUE(read_once->policy) << entry.path();
        EXPECT_GE(read_once->instances.size(), 2U) << entry.path();
        EXPECT_TRUE(advice(*read_once).empty()) << advice(*read_once).front();
        const Result<Documents> again = parse_documents(effective_yaml(*read_once), "/f/g.yaml");
        ASSERT_TRUE(again) << again.error().message;
        EXPECT_EQ(*read_once, *again) << entry.path();
        ++count;
    }
    EXPECT_EQ(count, 6U);
    const Documents tenants = load_paths({std::string(BERTH_CONFIGS) +
                                          "/policies/examples/5-three-tenants-eight-gpus.yaml"})
                                  .value();
    EXPECT_EQ(tenants.policy->tenants.size(), 3U);
    EXPECT_EQ(tenants.find_instance("research-training")->device_count, 4U);
    EXPECT_EQ(tenants.policy->find_tenant("research")->device_memory_bytes_max, 320ULL << 30);
}

TEST(ProcessDigest, ChangesWithWhatTheProcessIsMadeOf) {
    const Documents documents = read(instance(""));
    InstanceSpec i = documents.instances[0];
    const ModelSpec* m = documents.find_model("m");
    const std::string before = process_digest(i, m);
    i.memory_limit_bytes *= 2;
    EXPECT_EQ(process_digest(i, m), before);
    i.engine.command.push_back("x");
    EXPECT_NE(process_digest(i, m), before);
}

} // namespace berth::policies
