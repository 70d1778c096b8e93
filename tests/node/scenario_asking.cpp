// SPDX-License-Identifier: Apache-2.0
// What scenarios say of holds, drains and cordons.
#include "tests/node/scenario_runner.h"
#include "tests/node/scenario_words.h"

namespace berth::node::test {

std::optional<std::string> Runner::when_asking(const Words& words) {
    const std::string& what = at(words, 1);
    if (words[0] == "drain") { // OP of NAME|D found
        Operation operation;
        operation.id = OperationId(what);
        const std::string whom = at(words, 3);
        operation.mode = operation.reached = policies::Rung::kEvict;
        operation.kind = OperationKind::kDrainDevice;
        operation.object = "device/" + whom;
        if (is_instance(whom)) {
            operation.kind = OperationKind::kDrain;
            operation.instance = InstanceName(whom);
            operation.object = "instance/" + whom;
        }
        return event(OperationRecovered{operation});
    }
    if (words[0] == "found" && what == "cordon") {
        const Device device = state_.devices.at(DeviceId(at(words, 2)));
        return event(
            DeviceSeen{device.id, device.kind, device.name, device.total_bytes, true, "on record"});
    }
    if (words[0] == "operation" || is_instance(words[0]))
        return std::nullopt;
    const OperationId id(words[0]);
    const bool dry = has(words, "dry");
    const Nanoseconds timeout = time_of(word_after(words, "timeout", "1s"));
    if (what == "holds" || what == "releases")
        return event(OperatorHold{id, InstanceName(at(words, 2)), what == "holds", "test", dry});
    if (what == "drains")
        return event(OperatorDrain{id, InstanceName(at(words, 2)), timeout, "test", dry});
    if (what == "cordons" || what == "uncordons")
        return event(DeviceCordon{id, DeviceId(at(words, 2)), what == "cordons", "test", dry});
    if (what == "empties")
        return event(DeviceDrain{id, DeviceId(at(words, 2)), timeout, "test", dry});
    return std::nullopt;
}

std::optional<std::string> Runner::then_asking(const Words& words) const {
    if (!is_instance(words[0]))
        return std::nullopt;
    const Instance& i = state_.instances.at(InstanceName(words[0]));
    std::string where;
    for (const DeviceId& device : i.devices)
        where += (where.empty() ? "" : ",") + device.value;
    if (at(words, 1) == "on")
        return where == at(words, 2) ? "" : "it is on " + (where.empty() ? "nothing" : where);
    if (at(words, 1) == "nowhere")
        return where.empty() ? "" : "it is on " + where;
    return std::nullopt;
}

} // namespace berth::node::test
