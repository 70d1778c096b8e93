// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/reducer.h"

namespace berth::node {

namespace {

std::string number(LoadId id) {
    return std::to_string(static_cast<uint64_t>(id));
}
std::string number(TimerId id) {
    return std::to_string(static_cast<uint64_t>(id));
}

struct Describe {
    std::string operator()(const StartLoad& a) const {
        return "StartLoad " + a.key.path + " " +
               (a.key.ranks > 1 ? "rank " + std::to_string(a.key.rank) + " " : "") +
               a.key.device.value + (a.source.empty() ? "" : " from " + a.source.value);
    }
    std::string operator()(const StartCopy& a) const {
        return "StartCopy " + a.set.value + " " + a.source.value + " to " + a.to.value;
    }
    std::string operator()(const GoLoad& a) const { return "GoLoad " + number(a.load); }
    std::string operator()(const RefuseLoad& a) const {
        return "RefuseLoad " + number(a.load) + " " + a.error.reason;
    }
    std::string operator()(const KillLoad& a) const { return "KillLoad " + number(a.load); }
    std::string operator()(const KeepWeights& a) const { return "KeepWeights " + a.set.id.value; }
    std::string operator()(const DropWeights& a) const { return "DropWeights " + a.set.value; }
    std::string operator()(const TidyImages& a) const { return "TidyImages " + a.folder; }
    std::string operator()(const LoadFinished& a) const {
        return "LoadFinished " + a.key.path + " " +
               (a.error ? a.error->reason
                : a.set ? a.set->value
                        : "");
    }
    std::string operator()(const PublicationAnswered& a) const {
        return "PublicationAnswered " + std::to_string(a.publication) + " " +
               (a.error ? a.error->reason : number(*a.load));
    }
    std::string operator()(const StartProcess& a) const {
        std::string on;
        for (const DeviceId& device : a.devices)
            on += (on.empty() ? "" : ",") + device.value;
        return "StartProcess " + a.instance.value + " " + on + " " +
               format_bytes_exact(a.grant_bytes);
    }
    std::string operator()(const TerminateProcess& a) const {
        return "TerminateProcess " + a.instance.value;
    }
    std::string operator()(const StopProcess& a) const { return "StopProcess " + a.instance.value; }
    std::string operator()(const ContinueProcess& a) const {
        return "ContinueProcess " + a.instance.value;
    }
    std::string operator()(const InspectProcess& a) const {
        return "InspectProcess " + a.instance.value;
    }
    std::string operator()(const KillProcess& a) const { return "KillProcess " + a.instance.value; }
    std::string operator()(const SendCommand& a) const {
        std::string text = "SendCommand " + a.instance.value + " " + std::string(to_string(a.kind));
        if (a.kind == CommandKind::kRestore || a.kind == CommandKind::kShrink ||
            a.kind == CommandKind::kGrow)
            text += " " + format_bytes_exact(a.grant_bytes);
        if (a.kind == CommandKind::kServe)
            text += " " + std::to_string(a.generation);
        if (a.hand_over == HandOver::kRequests)
            text += " handing over";
        if (a.hand_over == HandOver::kConnections)
            text += " handing over connections";
        if (a.hand_over == HandOver::kLate)
            text += " handing over late";
        if (a.hand_over == HandOver::kSocket)
            text += " handing over the socket";
        if (a.kind == CommandKind::kOffload)
            text += " " + std::string(policies::to_string(a.kv));
        return text;
    }
    std::string operator()(const NoteRequests& a) const {
        return "NoteRequests " + a.instance.value;
    }
    std::string operator()(const ForgetRequests& a) const {
        return "ForgetRequests " + a.instance.value + (a.noted ? " noted" : "") +
               (a.drop ? " and their journal" : "");
    }
    std::string operator()(const TellRules&) const { return "TellRules"; }
    std::string operator()(const ConfirmBytes& a) const {
        return "ConfirmBytes " + a.instance.value;
    }
    std::string operator()(const ArmTimer& a) const { return "ArmTimer " + number(a.timer); }
    std::string operator()(const CancelTimer& a) const { return "CancelTimer " + number(a.timer); }
    std::string operator()(const PersistInstance& a) const {
        return "PersistInstance " + a.instance.name.value + " " +
               std::string(to_string(a.instance.state));
    }
    std::string operator()(const ForgetInstance& a) const {
        return "ForgetInstance " + a.instance.value;
    }
    std::string operator()(const PersistWeights& a) const {
        return "PersistWeights " + a.set.id.value;
    }
    std::string operator()(const PersistDevice& a) const {
        return "PersistDevice " + a.device.id.value + (a.device.cordoned ? " cordoned" : "");
    }
    std::string operator()(const PersistOperation& a) const {
        return "PersistOperation " + a.operation.id.value + " " +
               std::string(to_string(a.operation.state));
    }
    std::string operator()(const PersistRollout& a) const {
        return "PersistRollout " + a.rollout.instance.value + " " +
               std::string(to_string(a.rollout.phase));
    }
    std::string operator()(const ForgetRollout& a) const {
        return "ForgetRollout " + a.instance.value;
    }
    std::string operator()(const AdoptDocument& a) const { return "AdoptDocument " + a.spec.name; }
    std::string operator()(const OperationDone& a) const {
        return "OperationDone " + a.operation.id.value + " " +
               std::string(to_string(a.operation.state)) +
               (a.operation.error ? " " + a.operation.error->reason : "");
    }
    std::string operator()(const EmitEvent& a) const {
        return "EmitEvent " + a.object + " " + a.reason;
    }
    std::string operator()(const Decision& a) const {
        return "Decision " + a.object + " " + (a.winner.empty() ? "none" : a.winner);
    }
};

} // namespace

std::string describe(const Action& action) {
    return std::visit(Describe{}, action);
}

} // namespace berth::node
