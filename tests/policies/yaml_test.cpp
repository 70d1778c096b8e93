// SPDX-License-Identifier: Apache-2.0
// Goal: what is written is read as it was meant, or refused with the place, the text and the
// nearest known name. Method: small documents with one fault each; whole ones read, printed and
// read again.
#include "policies/yaml.h"

#include <gtest/gtest.h>

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
std::string policy(const std::string& spec) {
    return "kind: ColocationPolicy\nmetadata: {name: p}\nspec:\n" + spec;
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

struct Fault {
    std::string text;
    std::string message;
};

} // namespace

TEST(Yaml, FaultsAreNamedWithTheirPlaceAndTheNearestName) {
    const Fault faults[] = {
        {"kind: Modle\nmetadata: {name: m}\nspec: {path: /m}\n",
         "f.yaml:1:7: field 'kind': unknown value 'Modle'; did you mean 'Model'?"},
        {policy("  preemtion: {}\n"),
         "f.yaml:4:3: field 'spec.preemtion': unknown field; did you mean 'preemption'?"},
        {policy("  mode: Enforce\n  mode: Off\n"),
         "f.yaml:5:3: field 'spec.mode': given twice; the first is in line 4"},
        {policy("  preemption: {reclaimDeadline: 5}\n"),
         "f.yaml:4:33: field 'spec.preemption.reclaimDeadline': "},
        {"kind: Model\nmetadata: {name: m}\nspec: {dtype: bfloat16}\n",
         "f.yaml:3:7: field 'spec.path': missing"},
        {"kind: Model\nmetadata: {name: m}\nspec: {pth: /m}\n",
         "f.yaml:3:8: field 'spec.pth': unknown field; did you mean 'path'?"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: /m, pin: yes}\n",
         "f.yaml:3:23: field 'spec.pin': expected true or false, found 'yes'"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: /m, pin: \"true\"}\n",
         "f.yaml:3:23: field 'spec.pin': expected true or false"},
        {policy("  priorityClasses: [{name: a, value: 010}]\n"),
         "f.yaml:4:38: field 'spec.priorityClasses[0].value': expected a decimal integer without "
         "leading zeros, found '010'"},
        {policy("  priorityClasses: [{name: a, value: 0x10}]\n"), "expected an integer"},
        {policy("  priorityClasses: []\n"), "at least one class is needed"},
        {policy("  priorityClasses: [{name: a, value: 1}, {name: a, value: 2}]\n"),
         "class 'a' is given twice"},
        {policy("  triggers: [{class: onlin, on: RequestArrival}]\n"),
         "f.yaml:4:22: field 'spec.triggers[0].class': no priority class 'onlin'; did you mean "
         "'online'?"},
        {policy("  triggers: [{class: batch, on: Schedule, cron: \"* * *\"}]\n"),
         "expected 5 parts"},
        {policy("  memory: {hostPinnedLimit: 010Gi}\n"), "without leading zeros"},
        {policy("  memory: {hostPinnedLimit: 4Gb}\n"), "f.yaml:4:29: "},
        {policy("  memory: {imageDir: images, imageLimit: 1Gi}\n"), "expected an absolute path"},
        {policy("  memory: {imageDir: /images}\n"), "needs imageLimit"},
        {policy("  memory: {imageLimit: 1Gi}\n"), "needs imageDir"},
        {policy("  preemption: {preemptMode: [Pause, Pause]}\n"), "'Pause' is given twice"},
        {policy("  attach: {onMismatch: Maybe}\n"), "onMismatch"},
        {policy("  sharing: {compute: MPS}\n"), "MPS is still to come"},
        {policy("  sharing: {batchShareWhenBusy: 120%}\n"), "batchShareWhenBusy"},
        {policy("  tenants: [{name: t, mayAttach: [x]}]\n"), "no Model 'x'"},
        {instance("  priorityClassName: onlien\n"),
         "f.yaml:5:1: Instance 'i': field 'spec.priorityClassName': no class 'onlien'; did you "
         "mean 'online'?"},
        {"kind: Instance\nmetadata: {name: i}\nspec: {model: m, resources: {limits: {memory: "
         "1Gi}}, "
         "engine: {command: [e]}}\n",
         "field 'spec.model': no Model 'm'; no Model is given"},
        {instance("  devices: [\"../x\"]\n"), "not a device's id"},
        {instance("  devices: any\n"), "unknown value 'any'"},
        {instance("").replace(0, 0, "kind: Model\nmetadata: {name: m}\nspec: {path: /n}\n---\n"),
         "Model 'm' is given twice; the other is at f.yaml:1:1"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: /m, quantization: int8}\n",
         "unknown value 'int8'"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: /m, tensorParallel: 2}\n",
         "'2' is still to come"},
        {"kind: Instance\nmetadata: {name: i}\nspec: {engine: {driver: vllm, command: [v]}}\n",
         "driver vllm is still to come"},
        {"kind: Instance\nmetadata: {name: i}\nspec: {engine: {driver: process, command: []}}\n",
         "a program and its arguments are needed"},
        {"kind: Instance\nmetadata: {name: i}\nspec: {resources: {requests: {memory: 2Gi}, limits: "
         "{memory: 1Gi}}, engine: {driver: process, command: [a]}}\n",
         "limits.memory (1Gi) is less than requests.memory (2Gi)"},
        {"kind: Instance\nmetadata: {name: i}\nspec: {engine: {driver: process, command: [a], "
         "environment: {BERTH_TOKEN: x}}}\n",
         "BERTH_ variables are the daemon's"},
        {"kind: Node\nmetadata: {name: n}\nspec: {adminTcp: {listen: \"0.0.0.0:1\", tokenFile: "
         "t}}\n",
         "only loopback addresses"},
        {"kind: Node\nmetadata: {name: n}\nspec: {devices: {host: [{name: gpu, memory: 1Gi}]}}\n",
         "a host device is named host-N"},
        {"kind: Model\nmetadata: {name: \"a/b\"}\nspec: {path: /m}\n", "not a name: 'a/b'"},
        {"kind: Model\nspec: {path: /m}\n", "metadata"},
        {"apiVersion: berth/v2\nkind: Model\nmetadata: {name: m}\nspec: {path: /m}\n",
         "expected 'berth/v1', found 'berth/v2'"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: !!int 5}\n", "tags are not read here"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: ~}\n", "expected text, found nothing"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: [a]}\n", "expected text, found a list"},
        {"- a\n- b\n", "f.yaml:1:1: the document: expected a map, found a list"},
        {"kind: {a: [}\n", "not YAML"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: /m}\n---\nkind: Model\nmetadata: {name: "
         "x}\nspec: {path: /m, pinn: true}\n",
         "f.yaml:7:18: field 'spec.pinn'"},
        {policy("  mode: Off\n") + "---\n" + policy("  mode: Off\n"), "a second ColocationPolicy"},
    };
    for (const Fault& fault : faults)
        EXPECT_NE(error_of(fault.text).find(fault.message), std::string::npos)
            << fault.text << "gives: " << error_of(fault.text) << "\nwanted: " << fault.message;
}

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
  memory: {deviceReserve: 3Gi, hostPinnedLimit: 63Gi, hostTier: 31Gi, imageDir: /var/images, imageLimit: 127Gi}
  tenants:
    - {name: search, users: [svc-search], mayAttach: ["m"], maxDeviceMemory: 60Gi}
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
  devices: ["GPU-0123", host-0]
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
    EXPECT_EQ(first.instances[0].slo->ttft, std::chrono::milliseconds(200));
    EXPECT_EQ(first.node->devices.host[1].memory_bytes, 1536ULL << 20);
    const std::string printed = effective_yaml(first);
    const Documents second = read(printed);
    EXPECT_EQ(first, second) << printed;
    EXPECT_EQ(effective_yaml(second), printed);
}

TEST(Yaml, PathsAreRelativeToTheirFile) {
    const Result<Documents> documents = parse_documents(
        "kind: Model\nmetadata: {name: m}\nspec: {path: ../models/m}\n---\nkind: Instance\n"
        "metadata: {name: i}\nspec: {engine: {driver: process, command: [a]}}\n",
        "/etc/berth/a.yaml");
    ASSERT_TRUE(documents);
    EXPECT_EQ(documents->models[0].path, "/etc/models/m");
    EXPECT_EQ(documents->instances[0].engine.working_directory, "/etc/berth");
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
