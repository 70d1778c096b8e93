// SPDX-License-Identifier: Apache-2.0
#include "policies/field_words.h"

#include <algorithm>

namespace berth::policies {

namespace {

using Words = std::vector<std::pair<std::string_view, std::string_view>>;

const Words kCommon{
    {"apiVersion", "The version of the language that the document is written in."},
    {"kind", "What this document is about."},
    {"metadata", "Who it is."},
    {"metadata.name",
     "Unique among the documents of its kind; 1 to 63 letters, digits, '.', '_' and '-'."},
};

const Words kNode{
    {"Node.spec", "The daemon's own settings: read when it starts."},
    {"Node.spec.socket", "Where engines connect; the admin socket lies beside it."},
    {"Node.spec.group", "Who may use the sockets, beside root and the daemon's user."},
    {"Node.spec.stateDir", "Records, and logs of engines."},
    {"Node.spec.devices",
     "auto: every GPU; or a list of UUIDs; or budgets of host memory that act as devices."},
    {"Node.spec.devices.host", "Budgets of host memory, each a device of its own."},
    {"Node.spec.devices.host[].name", "host-N."},
    {"Node.spec.devices.host[].memory", "How much of the host's memory it stands for."},
    {"Node.spec.keeper",
     "Who holds the descriptors of the weights: a process of ours, or systemd."},
    {"Node.spec.policies",
     "Files, and folders of *.yaml and *.yml, with the other documents; relative to this file."},
    {"Node.spec.adminTcp", "The admin interface on TCP, beside its socket."},
    {"Node.spec.adminTcp.listen", "HOST:PORT; loopback, unless anywhere says otherwise."},
    {"Node.spec.adminTcp.tokenFile", "The file with the tokens of those who may ask."},
    {"Node.spec.adminTcp.certificateFile", "PEM; with keyFile it makes TLS of it."},
    {"Node.spec.adminTcp.keyFile", "PEM; the certificate's private key."},
    {"Node.spec.adminTcp.anywhere", "Allows an address that other machines can reach; needs TLS."},
    {"Node.spec.access", "Who may do what on the admin socket, beside root and the daemon's user."},
    {"Node.spec.access[].role",
     "viewer looks; operator preempts, resumes, loads; admin changes documents too."},
    {"Node.spec.access[].users", "Names or numbers of users."},
    {"Node.spec.access[].groups", "Names or numbers of groups."},
};

const Words kPolicy{
    {"ColocationPolicy.spec", "Who gives way to whom, when and how."},
    {"ColocationPolicy.spec.mode",
     "Enforce; Observe decides and records, and does nothing; Off leaves everything alone."},
    {"ColocationPolicy.spec.priorityClasses",
     "What instances are to each other; a higher value is more important."},
    {"ColocationPolicy.spec.priorityClasses[].name",
     "What instances call it in priorityClassName."},
    {"ColocationPolicy.spec.priorityClasses[].value",
     "Higher is more important; -1000000000 to 1000000000."},
    {"ColocationPolicy.spec.priorityClasses[].preemptionPolicy",
     "Whether its instances may preempt those of lower classes."},
    {"ColocationPolicy.spec.priorityClasses[].preemptible",
     "Whether its instances may be preempted."},
    {"ColocationPolicy.spec.priorityClasses[].globalDefault",
     "The class of instances that name none; one class at most."},
    {"ColocationPolicy.spec.triggers", "What counts as demand of a class; any one is enough."},
    {"ColocationPolicy.spec.triggers[].class", "Whose demand it is."},
    {"ColocationPolicy.spec.triggers[].on", "What is looked at."},
    {"ColocationPolicy.spec.triggers[].above", "Requests that wait: demand when there are more."},
    {"ColocationPolicy.spec.triggers[].for", "How long there must have been more."},
    {"ColocationPolicy.spec.triggers[].metric",
     "ttft: time to the first token; tpot: time per further token."},
    {"ColocationPolicy.spec.triggers[].percentile", "Above 0, at most 100."},
    {"ColocationPolicy.spec.triggers[].target", "Demand when the percentile lies above it."},
    {"ColocationPolicy.spec.triggers[].cron",
     "The minutes in which instances of the class may run: minute hour day month weekday."},
    {"ColocationPolicy.spec.preemption", "How an instance is made to give way."},
    {"ColocationPolicy.spec.preemption.preemptMode", "The rungs that may be tried, in order."},
    {"ColocationPolicy.spec.preemption.fallback",
     "What follows when no rung was enough in time: Evict ends the engine; None waits."},
    {"ColocationPolicy.spec.preemption.reclaimDeadline", "How long each rung may take."},
    {"ColocationPolicy.spec.preemption.gracePeriod",
     "How long a victim may finish what it is at; at most the reclaimDeadline."},
    {"ColocationPolicy.spec.preemption.preemptExemptTime",
     "How long an instance that has just begun or come back is spared; not from Pause, and not "
     "from an SLO that burns."},
    {"ColocationPolicy.spec.preemption.minPriorityDelta",
     "How much less important a victim must be."},
    {"ColocationPolicy.spec.preemption.victimOrder",
     "Who is chosen first among victims that free enough."},
    {"ColocationPolicy.spec.preemption.disruptionBudget",
     "How often instances may be disturbed. Pause is free."},
    {"ColocationPolicy.spec.preemption.disruptionBudget.maxPreemptions",
     "Shrink, Offload and Evict within the window; 0: never."},
    {"ColocationPolicy.spec.preemption.disruptionBudget.window",
     "The time over which they are counted."},
    {"ColocationPolicy.spec.preemption.kvOnOffload",
     "What becomes of the KV cache: saved in host memory, dropped and computed again, or whichever "
     "fits the deadline."},
    {"ColocationPolicy.spec.resume", "When and how an instance comes back."},
    {"ColocationPolicy.spec.resume.after", "How long all must be quiet first."},
    {"ColocationPolicy.spec.resume.after.onlineIdle",
     "Time without demand of the class that preempted."},
    {"ColocationPolicy.spec.resume.memoryMargin",
     "Left free beside what comes back; auto: 2Gi on a GPU, 0 on a host device."},
    {"ColocationPolicy.spec.resume.verify", "How it is checked before it serves again."},
    {"ColocationPolicy.spec.resume.verify.canary", "Compute a known answer again, and compare."},
    {"ColocationPolicy.spec.resume.verify.timeout", "How long that may take."},
    {"ColocationPolicy.spec.resume.onFailure",
     "Hold: it stays suspended, with a reason; Evict: it starts anew."},
    {"ColocationPolicy.spec.attach", "How engines take shared weights."},
    {"ColocationPolicy.spec.attach.verifyCanary",
     "Reproduce the publisher's canary, where it left one, before Ready."},
    {"ColocationPolicy.spec.attach.onMismatch",
     "No shared set may be used: load a copy of its own from the disk, or fail."},
    {"ColocationPolicy.spec.attach.onChange",
     "The checkpoint has changed on disk: load it as a new set, or refuse."},
    {"ColocationPolicy.spec.sharing", "Who computes when several are resident."},
    {"ColocationPolicy.spec.sharing.compute",
     "Gate: batch waits while online works; TimeSlice: both by turns."},
    {"ColocationPolicy.spec.sharing.batchShareWhenBusy",
     "What batch may have meanwhile: a percentage, or SLO: as much as online's slo allows."},
    {"ColocationPolicy.spec.starvation", "Who has been suspended for too long."},
    {"ColocationPolicy.spec.starvation.maxSuspendedTime", "How long that is."},
    {"ColocationPolicy.spec.starvation.action",
     "Alert: an event and a metric; BoostPriority: it may preempt as the class above."},
    {"ColocationPolicy.spec.memory", "What is kept free, and what may be kept below the devices."},
    {"ColocationPolicy.spec.memory.deviceReserve",
     "Left free on each device; auto: 4Gi on a GPU, 0 on a host device."},
    {"ColocationPolicy.spec.memory.hostPinnedLimit",
     "Of KV saved in host memory; past it Offload drops."},
    {"ColocationPolicy.spec.memory.hostTier", "Of copies of weight sets in host memory; 0: none."},
    {"ColocationPolicy.spec.memory.imageDir",
     "Where copies of weight sets go as files; an absolute path."},
    {"ColocationPolicy.spec.memory.imageLimit", "How many bytes of them; needed with imageDir."},
    {"ColocationPolicy.spec.placement", "Where an instance goes when several devices have room."},
    {"ColocationPolicy.spec.placement.strategy",
     "Spread: the device with the most free bytes; Pack: the fullest that has room."},
    {"ColocationPolicy.spec.tenants", "Who shares the node."},
    {"ColocationPolicy.spec.tenants[].name", "What instances call it in tenant."},
    {"ColocationPolicy.spec.tenants[].users", "Users of the system that speak for it."},
    {"ColocationPolicy.spec.tenants[].mayAttach", "Models that it may attach to; absent: none."},
    {"ColocationPolicy.spec.tenants[].maxDeviceMemory",
     "Of all its instances on all devices, above the weights; none: no limit."},
};

const Words kWorkload{
    {"Model.spec", "A checkpoint that engines share."},
    {"Model.spec.path", "Its folder; relative to this file."},
    {"Model.spec.dtype", "auto: as stored."},
    {"Model.spec.quantization",
     "What is done on the way in; fp8-block: FP8 by blocks of 128 x 128."},
    {"Model.spec.tensorParallel",
     "Ranks that share each layer: a process each, with its part of the weights."},
    {"Model.spec.pin", "Never dropped to make room."},
    {"Instance.spec", "One engine, or any other program, that the node runs."},
    {"Instance.spec.model", "The Model whose weights it takes; needed with driver berth."},
    {"Instance.spec.priorityClassName", "A class of the ColocationPolicy; absent: its default."},
    {"Instance.spec.tenant", "A tenant of the ColocationPolicy."},
    {"Instance.spec.devices", "auto, or the ids of the devices that it may run on."},
    {"Instance.spec.deviceCount",
     "Devices that it takes at once, all or none. With driver berth as many as its Model has ranks "
     "(tensorParallel), or fewer that divide them: then ranks share a device."},
    {"Instance.spec.resources",
     "Memory above the weights: KV cache and work space. On each device, and of each rank there."},
    {"Instance.spec.resources.requests", "What it needs to run at all."},
    {"Instance.spec.resources.requests.memory", "Reserved for it before it starts."},
    {"Instance.spec.resources.limits", "What it may grow to."},
    {"Instance.spec.resources.limits.memory", "Given while there is room; absent: the request."},
    {"Instance.spec.slo", "What its users were promised."},
    {"Instance.spec.slo.ttft", "Time to the first token."},
    {"Instance.spec.slo.tpot", "Time per further token."},
    {"Instance.spec.slo.percentile", "Of requests; above 0, at most 100."},
    {"Instance.spec.restart", "When it is started again after it has ended."},
    {"Instance.spec.engine", "What is run."},
    {"Instance.spec.engine.driver", "berth: an engine that links libberth; process: any program, "
                                    "stopped and continued by signals."},
    {"Instance.spec.engine.command", "The program and its arguments."},
    {"Instance.spec.engine.user", "Whom it runs as; absent: the daemon's own user."},
    {"Instance.spec.engine.environment",
     "Variables beside the daemon's; BERTH_ ones are not yours to set."},
    {"Instance.spec.engine.workingDirectory", "Where it starts; absent: /."},
    {"Instance.spec.engine.startDeadline",
     "How long it may take from its start until it is ready."},
    {"Instance.spec.engine.listen",
     "HOST:PORT or unix:/PATH of a socket that the daemon holds and hands to it: while nobody "
     "serves, connections wait."},
    {"Instance.spec.engine.journal",
     "Requests in flight outlive the process; false: prompts never do."},
    {"Instance.spec.engine.stepDeadline",
     "A step that takes longer is stuck, and an engine that says nothing for longer frozen: its "
     "standby takes over; without one it is started again after three times as long."},
    {"Instance.spec.standbyOf",
     "The instance that it stands by for; all but devices and standby is as there."},
    {"Instance.spec.standby", "How it stands by."},
    {"Instance.spec.standby.grant",
     "TakeOver: what the other leaves becomes its own; Reserved: it has its own from the start."},
};

} // namespace

const Words& all_field_words() {
    static const Words all = [] {
        Words joined;
        for (const Words* part : {&kCommon, &kNode, &kPolicy, &kWorkload})
            joined.insert(joined.end(), part->begin(), part->end());
        return joined;
    }();
    return all;
}

std::string_view field_words(std::string_view path) {
    const Words& all = all_field_words();
    const auto found =
        std::find_if(all.begin(), all.end(), [path](const auto& one) { return one.first == path; });
    return found == all.end() ? std::string_view() : found->second;
}

} // namespace berth::policies
