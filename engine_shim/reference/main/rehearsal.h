// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/scheduler.h"

#include <vector>

namespace berth::engine {

// What one that stands by computes before anybody waits for it: a prompt of each of some lengths.
// Libraries load kernels, and choose among them, at the first prompt of about a length; whoever
// goes on with requests of a dead process would pay that before their next token (on an H200 47 ms
// for the first long prompt, some 10 for each length after it). Engine thread only.
class Rehearsal {
  public:
    struct Parts {
        StepModel& model;
        Scheduler& scheduler; // idle, its blocks hold nothing; they are used
        SchedulerLimits limits;
        uint32_t vocab = 0;
        uint32_t max_context = 0;
    };
    // A whole chunk, a quarter and a sixteenth of one.
    explicit Rehearsal(Parts parts);

    bool is_over() const { return lengths_.empty(); }
    // The next prompt, as far as the grant holds it. One that `hook` abandons is begun anew the
    // next time. A failure of the model ends the rehearsal and is returned.
    Status next(const LayerHook& hook);

  private:
    Parts parts_;
    std::vector<uint32_t> lengths_; // the last is next
};

} // namespace berth::engine
