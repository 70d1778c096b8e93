// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/board.h"
#include "scheduler/node/step.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

// Inside scheduler/node/ only: what the planner's files (placement, room, demand, returns) share.
namespace berth::node {

// A device on which an instance could run, and what is free there for it.
struct Step::Fit {
    Board::Row* row = nullptr;
    uint64_t need_bytes = 0;
    uint64_t available_bytes = 0;
    bool resident = true;
    int distance = 0;        // of its weights, see Board::Weights
    uint32_t first_rank = 0; // of several ranks that are placed there
};

// For whom room is made.
struct Step::Taker {
    std::string object;
    const Instance* instance = nullptr; // nullptr: it is a load
    int64_t priority = 0;
    bool preempts_lower = false;
    std::vector<LoadKey> keep{}; // sets with these keys are not dropped
    std::string* last_decision = nullptr;
    bool burning = false; // no timer that protects a victim delays it
    policies::Rung furthest = policies::Rung::kEvict;
    bool keeps(const WeightSet& set) const {
        return std::any_of(keep.begin(), keep.end(),
                           [&set](const LoadKey& key) { return set.keys.contains(key); });
    }
};

// How room would be made on a device.
struct Step::RoomPlan {
    struct Move {
        InstanceName name;
        policies::Rung rung = policies::Rung::kOffload;
        uint64_t bytes = 0;            // that it frees
        uint64_t grant_left_bytes = 0; // of Shrink
        int64_t priority = 0;
    };
    DeviceId device;
    uint64_t missing_bytes = 0; // beyond what is free or coming already
    bool enough = false;
    bool spares = false; // what others can spare, and no more
    std::string reason;  // why not: InsufficientMemory, PreemptExempt, DisruptionBudgetExhausted
    std::string why;
    std::vector<WeightSetId> drops;
    std::vector<Move> moves;
    Decision decision;

    // Less is cheaper: whom it hurts most, how many lose their process, their memory, a part of it.
    std::tuple<int64_t, size_t, size_t, size_t, size_t> cost() const;
};

// Where room could be made for one that waits.
struct Step::Search {
    Taker who;
    size_t ready = 0;               // devices that have room as they are
    std::vector<RoomPlan> plans;    // that suffice
    std::optional<RoomPlan> failed; // the first that does not,
    const Fit* failed_on = nullptr; // and where
};

// Whether the policy's preemptMode names the rung.
bool allows(const policies::PreemptionSpec& spec, policies::Rung rung);
// Why a decision is recorded and not carried out.
std::string not_enforced_words(const policies::PolicySpec& policy);

const policies::TenantSpec* find_tenant(const NodeState& state, const std::string& name);
// Bytes of grants and overhead that a tenant may still take; nothing: there is no limit.
std::optional<uint64_t> quota_left(const NodeState& state, const std::string& tenant);

} // namespace berth::node
