// SPDX-License-Identifier: Apache-2.0
// Goal: whatever is wrong is refused with file, line and column, the offending text, and the
// nearest known name where there is one. Method: small documents with one fault each.
#include "policies/yaml.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace berth::policies {

namespace {

constexpr const char* kModel = "kind: Model\nmetadata: {name: m}\nspec: {path: /m}\n";

std::string instance(const std::string& spec) {
    return std::string(kModel) +
           "---\nkind: Instance\nmetadata: {name: i}\nspec:\n  model: m\n  resources: {limits: "
           "{memory: 1Gi}}\n  engine: {command: [e]}\n" +
           spec;
}
std::string process(const std::string& spec) {
    return "kind: Instance\nmetadata: {name: i}\nspec:\n  engine: {driver: process, command: "
           "[e]}\n" +
           spec;
}
std::string policy(const std::string& spec) {
    return "kind: ColocationPolicy\nmetadata: {name: p}\nspec:\n" + spec;
}
std::string error_of(const std::string& text) {
    const Result<Documents> read = parse_documents(text, "f.yaml");
    return read ? "no error" : read.error().message;
}

struct Fault {
    std::string text;
    std::string message;
};
void expect_faults(const std::vector<Fault>& faults) {
    for (const Fault& fault : faults)
        EXPECT_NE(error_of(fault.text).find(fault.message), std::string::npos)
            << fault.text << "gives: " << error_of(fault.text) << "\nwanted: " << fault.message;
}

} // namespace

TEST(Faults, AreNamedWithTheirPlaceAndTheNearestName) {
    expect_faults({
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
         "expected 5 fields"},
        {policy("  memory: {hostPinnedLimit: 010Gi}\n"), "without leading zeros"},
        {policy("  memory: {hostPinnedLimit: 4Gb}\n"), "f.yaml:4:29: "},
        {policy("  memory: {imageDir: images, imageLimit: 1Gi}\n"), "expected an absolute path"},
        {policy("  memory: {imageDir: /images}\n"), "needs imageLimit"},
        {policy("  memory: {imageLimit: 1Gi}\n"), "needs imageDir"},
        {policy("  preemption: {preemptMode: [Pause, Pause]}\n"), "'Pause' is given twice"},
        {policy("  attach: {onMismatch: Maybe}\n"), "onMismatch"},
        {policy("  sharing: {compute: MPS}\n"), "field 'spec.sharing.batchShareWhenBusy': under "
                                                "compute: MPS it is the share of the GPU's"},
        {policy("  sharing: {compute: MPS, batchShareWhenBusy: SLO}\n"), "from 1% to 100%"},
        {policy("  sharing: {batchShareWhenBusy: 120%}\n"), "batchShareWhenBusy"},
        {policy("  tenants: [{name: t, mayAttach: [x]}]\n"), "no Model 'x'"},
        {instance("  priorityClassName: onlien\n"),
         "f.yaml:11:22: Instance 'i': field 'spec.priorityClassName': no class 'onlien'; did you "
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
        {"kind: Model\nmetadata: {name: m}\nspec: {path: /m, tensorParallel: 65}\n",
         "f.yaml:3:34: field 'spec.tensorParallel': expected 64 or less, found '65'"},
        {"kind: Instance\nmetadata: {name: i}\nspec: {engine: {driver: vllm, command: [v]}}\n",
         "'vllm' is still to come"},
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
         "unknown value 'berth/v2'; did you mean 'berth/v1'?"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: !!int 5}\n", "tags are not read here"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: ~}\n", "expected text, found nothing"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: [a]}\n", "expected text, found a list"},
        {"- a\n- b\n", "f.yaml:1:1: the document: expected a map, found a list"},
        {"kind: {a: [}\n", "not YAML"},
        {"kind: Model\nmetadata: {name: m}\nspec: {path: /m}\n---\nkind: Model\nmetadata: {name: "
         "x}\nspec: {path: /m, pinn: true}\n",
         "f.yaml:7:18: field 'spec.pinn'"},
        {policy("  mode: Off\n") + "---\n" + policy("  mode: Off\n"), "a second ColocationPolicy"},
    });
}

TEST(Faults, NumbersThatAreImpossibleAreRefused) {
    expect_faults({
        {policy("  triggers: [{class: online, on: SLOBurn, metric: ttft, percentile: 0, target: "
                "1s}]\n"),
         "f.yaml:4:69: field 'spec.triggers[0].percentile': a percentile lies above 0 and is at "
         "most 100, found '0'"},
        {policy(
             "  triggers: [{class: online, on: SLOBurn, metric: ttft, percentile: 100.5, target: "
             "1s}]\n"),
         "found '100.5'; write 99 or 99.9"},
        {policy("  triggers: [{class: online, on: SLOBurn, metric: ttft, target: 0}]\n"),
         "field 'spec.triggers[0].target': must be above 0, found '0'"},
        {policy("  triggers: [{class: online, on: QueueDepth, above: -1}]\n"),
         "expected 0 or more, found '-1'"},
        {policy("  triggers: [{class: batch, on: Schedule, cron: \"0 0 30 2 *\"}]\n"),
         "f.yaml:4:49: field 'spec.triggers[0].cron': '0 0 30 2 *': never comes: no month of '2' "
         "has a day '30'"},
        {policy("  triggers: [{class: batch, on: Schedule, cron: \"* 0-6,22-24 * * *\"}]\n"),
         "hour: '24' is out of range; expected 0 to 23"},
        {policy("  priorityClasses: [{name: a, value: 1000000001}]\n"),
         "expected 1000000000 or less, found '1000000001'"},
        {policy("  preemption: {minPriorityDelta: 0}\n"), "expected 1 or more, found '0'"},
        {policy("  preemption: {reclaimDeadline: 0}\n"), "must be above 0, found '0'"},
        {policy("  preemption: {gracePeriod: -1s}\n"), "'-1s' is not a duration"},
        {policy("  preemption: {gracePeriod: 100000h}\n"), "expected 87840h or less"},
        {policy("  preemption: {gracePeriod: 2s}\n"),
         "f.yaml:4:29: field 'spec.preemption.gracePeriod': '2s' is longer than reclaimDeadline "
         "('1s', its default), which no victim is given more than: raise reclaimDeadline, or "
         "shorten this"},
        {policy("  preemption: {gracePeriod: 600ms, reclaimDeadline: 500ms}\n"),
         "f.yaml:4:29: field 'spec.preemption.gracePeriod': '600ms' is longer than "
         "reclaimDeadline ('500ms'), which"},
        {policy("  preemption: {disruptionBudget: {window: 0}}\n"), "must be above 0"},
        {policy("  preemption: {disruptionBudget: {maxPreemptions: 2000000}}\n"),
         "expected 1000000 or less"},
        {policy("  starvation: {maxSuspendedTime: 0s}\n"), "must be above 0, found '0s'"},
        {policy("  resume: {verify: {timeout: 0}}\n"), "must be above 0"},
        {policy("  memory: {hostTier: 2000Ti}\n"), "expected 1024Ti or less, found '2000Ti'"},
        {policy("  tenants: [{name: t, maxDeviceMemory: 0}]\n"),
         "must be above 0; none is for no limit"},
        {instance("  slo: {ttft: 0}\n"), "field 'spec.slo.ttft': must be above 0"},
        {instance("  slo: {ttft: 1s, percentile: 101}\n"), "found '101'"},
        {instance("  slo: {percentile: 99}\n"), "an slo needs ttft, tpot or both"},
        {instance("  deviceCount: 0\n"), "expected 1 or more, found '0'"},
        {instance("  deviceCount: 2\n"),
         "f.yaml:11:16: Instance 'i': field 'spec.deviceCount': '2' does not go with "
         "tensorParallel: 1 of Model 'm' (f.yaml:1:1)"},
        {process("  devices: [GPU-1]\n  deviceCount: 2\n"),
         "f.yaml:5:12: field 'spec.devices': the list has 1, fewer than deviceCount: 2"},
        {process("  resources: {limits: {memory: 1Gi}, requests: {memory: 2Gi}}\n"),
         "f.yaml:5:32: field 'spec.resources.limits.memory': limits.memory (1Gi) is less than "
         "requests.memory (2Gi)"},
    });
}

TEST(Faults, SocketsAndStandbysThatCannotBeAreRefused) {
    const auto served = [](const std::string& name, const std::string& engine,
                           const std::string& more = "") {
        return "kind: Instance\nmetadata: {name: " + name +
               "}\nspec:\n  model: m\n  resources: {limits: {memory: 1Gi}}\n" + more +
               "  engine: {command: [e]" + engine + "}\n";
    };
    const std::string model = "kind: Model\nmetadata: {name: m}\nspec: {path: /m}\n---\n";
    const std::string chat = model + served("chat", ", listen: '127.0.0.1:8000'") + "---\n";
    const auto spare = [](const std::string& spec, const std::string& name = "spare") {
        return "kind: Instance\nmetadata: {name: " + name + "}\nspec: {" + spec + "}\n";
    };
    expect_faults({
        {model + served("chat", ", listen: '8000'"), "field 'spec.engine.listen': "},
        {model + served("chat", ", listen: 'unix:run/x'"),
         "a Unix socket's path begins with '/', found 'run/x'"},
        {model + served("chat", ", journal: false"),
         "field 'spec.engine.journal': needs listen: the address of a socket"},
        {model + served("chat", ", stepDeadline: 1s"),
         "field 'spec.engine.stepDeadline': needs listen"},
        {model + served("chat", ", listen: '127.0.0.1:8000', stepDeadline: 0s"), "above 0"},
        {chat + served("talk", ", listen: '127.0.0.1:8000'"),
         "'127.0.0.1:8000' is the address of Instance 'talk' too"},
        {model + served("chat", "", "  standby: {grant: Reserved}\n"),
         "field 'spec.standby': needs standbyOf"},
        {chat + spare("standbyOf: chit"), "Instance 'spare': field 'spec.standbyOf': no other "
                                          "Instance 'chit'; did you mean 'chat'?"},
        {chat + spare("standbyOf: spare"), "no other Instance 'spare'"},
        {chat + spare("standbyOf: chat, model: m"),
         "field 'spec.model': a standby takes it from 'chat'"},
        {chat + spare("standbyOf: chat, standby: {grant: Some}"), "unknown value 'Some'"},
        {chat + spare("standbyOf: chat") + "---\n" + spare("standbyOf: chat", "other"),
         "'chat' has a standby already: 'other'"},
        {chat + spare("standbyOf: chat") + "---\n" + spare("standbyOf: spare", "other"),
         "'spare' is itself a standby of 'chat'"},
        {model + served("chat", "") + "---\n" + spare("standbyOf: chat"),
         "has no engine.listen with driver berth"},
    });
}

TEST(Faults, DevicesThatDoNotGoWithTheRanksOfAModelAreRefusedWhereTheyStand) {
    const auto of_ranks = [](const std::string& ranks, const std::string& document) {
        std::string text = document;
        const std::string path = "{path: /m}";
        return text.replace(text.find(path), path.size(),
                            "{path: /m, tensorParallel: " + ranks + "}");
    };
    const std::string node = "kind: Node\nmetadata: {name: n}\nspec: {devices: {host: [{name: "
                             "host-0, memory: 8Gi}]}}\n---\n";
    expect_faults({
        {of_ranks("4", instance("  deviceCount: 3\n")),
         "f.yaml:11:16: Instance 'i': field 'spec.deviceCount': '3' does not go with "
         "tensorParallel: 4 of Model 'm' (f.yaml:1:1): leave it out for a device each, or give a "
         "divisor"},
        {of_ranks("2", instance("  deviceCount: 4\n")), "'4' does not go with tensorParallel: 2"},
        {of_ranks("2", instance("  devices: [a]\n")),
         "f.yaml:11:12: Instance 'i': field 'spec.devices': the list has 1, and it needs 2, one "
         "for each rank"},
        {of_ranks("2", node + instance("")),
         "'2' can never be had: the node has 1 devices (it follows from tensorParallel of Model "
         "'m'; with deviceCount: 1 all ranks share one)"},
        {of_ranks("2", std::string(kModel) + "---\n" + process("  model: m\n")),
         "f.yaml:9:10: Instance 'i': field 'spec.model': Model 'm' (f.yaml:1:1) is of 2 ranks "
         "(tensorParallel), and driver process is one process"},
    });
    for (const std::string& right :
         {of_ranks("4", instance("")), of_ranks("4", instance("  deviceCount: 2\n")),
          of_ranks("4", instance("  deviceCount: 1\n")),
          of_ranks("2", node + instance("  deviceCount: 1\n"))})
        EXPECT_EQ(error_of(right), "no error") << right;
}

TEST(Faults, NamesThatLeadNowhereAreRefusedWhereTheyStand) {
    const std::string tenants =
        policy("  tenants: [{name: search, users: [a], maxDeviceMemory: 4Gi}]\n") + "---\n";
    expect_faults({
        {tenants + process("  tenant: serach\n"),
         "f.yaml:10:11: Instance 'i': field 'spec.tenant': no tenant 'serach'; did you mean "
         "'search'?"},
        {process("  tenant: search\n"), "the ColocationPolicy has no tenants"},
        {tenants + process("  tenant: search\n  resources: {requests: {memory: 5Gi}}\n"),
         "f.yaml:11:34: Instance 'i': field 'spec.resources.requests.memory': '5Gi' can never be "
         "granted: maxDeviceMemory of tenant 'search' is 4Gi (f.yaml:4:13)"},
        {tenants + process("  tenant: search\n  deviceCount: 2\n  resources: {requests: {memory: "
                           "3Gi}}\n"),
         "'3Gi' on 2 devices can never be granted"},
        {policy("  tenants: [{name: t, users: [a], mayAttach: [n]}]\n") +
             "---\nkind: Model\nmetadata: {name: n}\nspec: {path: /n}\n---\n" +
             instance("  tenant: t\n"),
         "f.yaml:17:10: Instance 'i': field 'spec.model': tenant 't' may not attach Model 'm': add "
         "it to mayAttach at f.yaml:4:13"},
        {policy("  tenants: [{name: t, users: [a, a]}]\n"), "user 'a' is given twice"},
        {policy("  tenants: [{name: t}, {name: t}]\n"), "tenant 't' is given twice"},
        {process("  devices: [a, b, a]\n"),
         "f.yaml:5:19: field 'spec.devices': device 'a' is given twice"},
        {"kind: Node\nmetadata: {name: n}\nspec: {devices: {host: [{name: host-0, memory: "
         "1Gi}]}}\n---\n" +
             process("  devices: [host-1]\n"),
         "Instance 'i': field 'spec.devices': the node has no device 'host-1'; did you mean "
         "'host-0'?"},
        {"kind: Node\nmetadata: {name: n}\nspec: {devices: {host: [{name: host-0, memory: "
         "1Gi}]}}\n---\n" +
             process("  deviceCount: 2\n"),
         "'2' can never be had: the node has 1 devices"},
        {"kind: Node\nmetadata: {name: n}\nspec: {devices: {host: [{name: host-0, memory: "
         "1Gi}]}}\n---\n" +
             policy("  memory: {deviceReserve: 1Gi}\n"),
         "f.yaml:8:27: field 'spec.memory.deviceReserve': '1Gi' leaves nothing of device 'host-0'"},
    });
}

TEST(Faults, FieldsOfAnotherTriggerAreUnknownAndOrdersThatMakeNoLadderAreRefused) {
    expect_faults({
        {policy("  triggers: [{class: online, on: RequestArrival, above: 4}]\n"),
         "f.yaml:4:50: field 'spec.triggers[0].above': unknown field"},
        {policy("  triggers: [{class: online, on: QueueDepth}]\n"),
         "field 'spec.triggers[0].above': missing"},
        {policy("  triggers: [{class: online, on: QueueDepht, above: 4}]\n"),
         "unknown value 'QueueDepht'; did you mean 'QueueDepth'?"},
        {policy("  triggers: [{class: online, on: SLOBurn, metric: ttfp, target: 1s}]\n"),
         "unknown value 'ttfp'"},
        {policy("  triggers: [{class: online, on: RequestArrival}, {class: online, on: "
                "RequestArrival}]\n"),
         "the same trigger is given twice; the other is at f.yaml:4:14"},
        {policy("  preemption: {grace: 1s}\n"),
         "f.yaml:4:16: field 'spec.preemption.grace': unknown field; did you mean 'gracePeriod'?"},
        {policy("  preemption: {preemptMode: [Offload, Pause]}\n"),
         "a ladder goes from the mildest rung to the hardest"},
        {policy("  preemption: {preemptMode: [Pause, Offlaod]}\n"),
         "f.yaml:4:37: field 'spec.preemption.preemptMode': unknown value 'Offlaod'; did you mean "
         "'Offload'?"},
        {policy("  placement: {strategy: Packed}\n"),
         "unknown value 'Packed'; did you mean 'Pack'"},
        {policy("  placement: {stratgy: Pack}\n"), "unknown field; did you mean 'strategy'?"},
        {instance("  devices: ~\n"), "expected a word, found nothing"},
        {"kind: Instance\nmetadata: {name: i}\nspec: {}\n",
         "f.yaml:3:7: field 'spec.engine': missing; say what to run: engine: "},
        {"kind: Instance\nmetadata: {name: i}\nspec: {engien: {command: [a]}}\n",
         "field 'spec.engien': unknown field; did you mean 'engine'?"},
        {"kind: Instance\nmetadata: {name: i}\n", "field 'spec': missing"},
        {"metadata: {name: i}\n", "field 'kind': missing"},
    });
}

TEST(Faults, WhatTheTablesOfAFieldAllowAtTheirEdgesIsRead) {
    for (const std::string& right :
         {policy("  triggers: [{class: online, on: SLOBurn, metric: tpot, percentile: 100, target: "
                 "1ns}]\n"),
          policy("  triggers: [{class: online, on: QueueDepth, above: 0}]\n"),
          policy("  preemption: {preemptMode: [], fallback: None, gracePeriod: 0}\n"),
          policy("  preemption: {disruptionBudget: {maxPreemptions: 0}}\n"),
          policy("  tenants: [{name: t, mayAttach: [], maxDeviceMemory: none}]\n"),
          policy("  tenants: [{name: t, users: [a]}, {name: u, users: [a]}]\n"),
          policy("  memory: {deviceReserve: auto, hostTier: 1024Ti}\n"),
          process("  devices: [a, b]\n  deviceCount: 2\n"), process("  deviceCount: 64\n"),
          process("  resources: {limits: {memory: 2Gi}, requests: {memory: 2Gi}}\n")})
        EXPECT_EQ(error_of(right), "no error") << right;
}

TEST(Faults, ANodeWhosePoliciesLeadBackToItselfIsACycle) {
    const auto folder =
        std::filesystem::temp_directory_path() / ("berth-cycle-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder / "more");
    const std::string config = (folder / "node.yaml").string();
    const auto write = [&](const std::string& policies) {
        std::ofstream(config) << "kind: Node\nmetadata: {name: n}\nspec:\n  policies: " << policies
                              << "\n";
    };
    std::ofstream(folder / "more" / "m.yaml") << kModel;
    std::filesystem::create_symlink(config, folder / "more" / "self.yaml");
    for (const char* policies :
         {"[.]", "[node.yaml]", "[./more/../node.yaml]", "[more/self.yaml]", "[more]"}) {
        write(policies);
        const Result<Documents> read = load_node(config);
        ASSERT_FALSE(read) << policies;
        EXPECT_NE(read.error().message.find("node.yaml:4:13: field 'spec.policies': "),
                  std::string::npos)
            << read.error().message;
        EXPECT_NE(read.error().message.find("leads back to this very file"), std::string::npos)
            << read.error().message;
    }
    write("[more/m.yaml, more/../more/m.yaml]");
    Result<Documents> twice = load_node(config);
    ASSERT_FALSE(twice);
    EXPECT_NE(twice.error().message.find("would be read twice"), std::string::npos)
        << twice.error().message;
    write("[absent]");
    EXPECT_NE(load_node(config).error().message.find("no such file or folder"), std::string::npos);
    write("[more/m.yaml]");
    Result<Documents> right = load_node(config);
    ASSERT_TRUE(right) << right.error().message;
    EXPECT_EQ(right->models.size(), 1U);
    std::ofstream(config) << kModel;
    EXPECT_NE(load_node(config).error().message.find("no document of kind Node"),
              std::string::npos);
    std::filesystem::remove_all(folder);
}

TEST(Advice, NamesClassesAndTriggersThatSilentlyDoNothing) {
    const auto said = [](const std::string& text) {
        std::string all;
        for (const std::string& one : advice(parse_documents(text, "f.yaml").value()))
            all += one + "\n";
        return all;
    };
    EXPECT_EQ(said(""), "");
    EXPECT_EQ(said(policy("  mode: Enforce\n")), "");
    EXPECT_NE(said(policy("  priorityClasses:\n    - {name: a, value: 5, preemptionPolicy: "
                          "PreemptLowerPriority}\n    - {name: b, value: 1}\n"))
                  .find("f.yaml:5:7: class 'a' can never preempt anyone: no preemptible class lies "
                        "10 (minPriorityDelta) or more below it"),
              std::string::npos);
    EXPECT_NE(said(policy("  triggers: [{class: batch, on: RequestArrival}]\n"))
                  .find("f.yaml:4:14: class 'batch' preempts nobody"),
              std::string::npos);
    EXPECT_NE(said(policy("  preemption: {preemptMode: [], fallback: None}\n"))
                  .find("nothing is ever preempted"),
              std::string::npos);
    EXPECT_NE(
        said(policy("  tenants: [{name: t, users: [a]}]\n") + "---\n" + instance("  tenant: t\n"))
            .find("f.yaml:10:1: Instance 'i' is of tenant 't', which may attach no Model"),
        std::string::npos);
    EXPECT_NE(said(policy("  tenants: [{name: t}]\n")).find("tenant 't' has no users"),
              std::string::npos);
}

} // namespace berth::policies
