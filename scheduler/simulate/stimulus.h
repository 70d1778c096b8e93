// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/simulate/dice.h"
#include "scheduler/simulate/shape.h"

#include <cstdint>
#include <string>

namespace berth::simulate {

// One thing that is done to a simulated node from outside. `object` names an instance, a device, a
// model; what the numbers mean is the kind's own. A line of a trace:
//
//     12.250s preempt i3 2 0
struct Stimulus {
    enum class Kind {
        kPreempt, // a: the rung
        kResume,
        kHold,
        kRelease,
        kDrain,
        kCordon,
        kUncordon,
        kDrainDevice,
        kLoad,
        kEvictWeights, // b: the copies too
        kPin,
        kUnpin,
        kEngineDies,
        kProgramExits, // cleanly, without having been asked
        kDisconnects,
        kFallsSilent,
        kSticks, // a step that does not end
        kPromote,
        kRollout,      // a: what changes, b: how it is asked for
        kRolloutAsked, // a: pause, resume, undo
        kArrivals,     // a: requests; b: 1 when they miss their target
        kDocuments,    // a: what changes, b: how
        kCheckpointChanges,
        kGuestTakes, // a: the guest
        kGuestLeaves,
        kGuestPublishes, // b: 1 for itself alone
        kBerthdKilled,   // a: writes and actions from now; b: milliseconds it is away
        kKeeperKilled,   // together with berthd: the same
        kBerthdStops,
        kDiskFull,   // a: milliseconds
        kClockJumps, // a: seconds, b: 1 backwards
        kLateWords,  // a: of which kind
        kKindsMax,
    };
    Nanoseconds at{0}; // from the start of the run
    Kind kind = Kind::kPreempt;
    std::string object;
    uint64_t a = 0;
    uint64_t b = 0;
    uint64_t number = 0; // of the draw that it came from
};

// The n-th stimulus of a seed; `gap` is how long after the one before.
Stimulus draw_stimulus(const Dice& dice, uint64_t number, const Shape& shape, Nanoseconds& gap);

std::string to_text(const Stimulus& stimulus);
Result<Stimulus> stimulus_from(const std::string& line);

} // namespace berth::simulate
