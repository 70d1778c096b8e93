// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>

// A changed document on its way to an instance that serves: what is on record of it, and what it
// makes of the documents. Plain values; decided in rollouts.h.
namespace berth::node {

enum class RolloutPhase {
    kStarting,    // the new one is started beside the old one
    kReady,       // it is ready, and the rollout is paused
    kHandingOver, // the old one ends, and the new one takes socket and requests
    kFollowing,   // the old one starts again with the new document, behind the new one
    kReturning,   // it takes back what the surge has served meanwhile, and the surge ends
    kReplacing,   // in place: it is stopped, then started again
    kReverting,   // back to the document before
    kComplete,
    kFailed,
    kUndone,
};

struct Rollout {
    InstanceName instance;
    uint64_t number = 0; // 1, 2, ... of that instance
    policies::InstanceSpec before, after;
    RolloutPhase phase = RolloutPhase::kStarting;
    // Who takes the new document first: the standby, or the surge, an instance that is there for
    // the rollout alone. Empty: in place.
    InstanceName first;
    bool surge = false;
    bool surge_stays = false;
    bool paused = false;    // it does not hand over until it is resumed
    bool may_stop = false;  // in place, if there is no room beside the old one
    bool made_room = false; // the old one was asked for what it has beyond its request
    bool undo = false;      // an operator wants it undone
    bool goes_back = false; // it undoes one that was complete
    bool adopted = false;   // the documents say what it has come to
    std::string cause;      // the operator's words
    std::string reason;     // of its failure, CamelCase
    std::string message;
    TimePoint started, since;            // since: of the phase
    std::optional<TimePoint> stopped_at; // in place: nobody answers since
    Nanoseconds gap{0};                  // so long nobody did

    // What the documents themselves say of the instance and of who stands by for it. Not on record:
    // told anew with each change of the documents.
    policies::InstanceSpec said;
    std::optional<policies::InstanceSpec> standby;
    std::optional<TimerId> retry; // the documents are told again

    bool is_under_way() const { return phase < RolloutPhase::kComplete; }
    bool is_in_place() const { return first.empty(); }
};
using Rollouts = std::map<InstanceName, Rollout>; // the last one of each instance

// It gives back a part of its grant for the one beside it; no more than that is taken from it.
bool gives_room(const Rollouts& rollouts, const InstanceName& name);

// "chat~next": no document can have that name.
InstanceName surge_name(const InstanceName& of);
bool is_surge(const InstanceName& name);

// The documents as they hold while rollouts are under way, or not yet kept by the documents
// themselves. Laid twice it is the same.
void lay_rollouts(const Rollouts& rollouts, policies::Documents& documents);

std::string_view to_string(RolloutPhase phase); // "Starting", ...
Result<RolloutPhase> rollout_phase_from(std::string_view name);

} // namespace berth::node
