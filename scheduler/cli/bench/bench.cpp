// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/bench.h"

namespace berth::cli::bench {

const std::vector<Bench>& all() {
    static const std::vector<Bench> known = {
        {"attach",
         "A guest's attach to a resident set, against the raw mapping calls",
         {"weights"},
         attach},
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
        {"recover",
         "SIGKILL berthd, start it again, attach (not for one that systemd restarts)",
         {"weights", "config"},
         recover},
        {"daemon", "berthd's resident memory, GPU memory and idle CPU time", {}, daemon},
    };
    return known;
}

} // namespace berth::cli::bench
