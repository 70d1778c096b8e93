// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/bench.h"

namespace berth::cli::bench {

const std::vector<Bench>& all() {
    static const std::vector<Bench> known = {
        {"attach",
         "A guest's attach to a resident set, against the raw mapping calls",
         {"weights"},
         attach},
        {"attach-storm",
         "64 clients attach and leave at once, again and again; nothing may be left",
         {"weights"},
         attach_storm},
        {"preempt",
         "Preempt and resume an instance, again and again",
         {"instance", "mode"},
         preempt},
        {"resume",
         "The same rounds as preempt: both halves are timed",
         {"instance", "mode"},
         preempt},
        {"start",
         "Evict an instance, then time its start with the weights resident",
         {"instance"},
         start},
        {"failover",
         "SIGKILL the engine that answers: until the next token of the same stream (instances "
         "with engine.listen)",
         {"instance", "failover"},
         failover},
        {"grant",
         "Memory taken and given back, in handles of each size (asks no node)",
         {"memory"},
         grant},
        {"recover",
         "SIGKILL berthd, start it again, attach (not for one that systemd restarts)",
         {"weights", "config"},
         recover},
        {"load-warm",
         "berth-loader on a checkpoint in the page cache, beside the wire (asks no node)",
         {"checkpoint"},
         load_warm},
        {"load-cold",
         "The same with the page cache dropped, beside the disk's best direct read",
         {"checkpoint"},
         load_cold},
        {"load-image",
         "The same from an image of the weight set, and from a copy of it on the host (asks no "
         "node)",
         {"checkpoint", "image"},
         load_image},
        {"quantise",
         "A load to block-wise FP8 beside the same load without (asks no node)",
         {"checkpoint"},
         quantise},
        {"daemon",
         "What berthd costs: memory, idle CPU time, reads and changes a second, decisions (starts "
         "a node of its own)",
         {"daemon"},
         daemon},
        {"colocate",
         "Online with batch beside it under each way of sharing, against each alone (starts a node "
         "of its own)",
         {"colocate"},
         colocate},
        {"cycles",
         "Preemption after preemption under load, with faults in between: every byte back, every "
         "answer as undisturbed (starts a node of its own)",
         {"cycles"},
         cycles},
        {"idle-engine",
         "An engine that does nothing but obey; berthd starts it for the bench daemon",
         {},
         idle_engine},
    };
    return known;
}

} // namespace berth::cli::bench
