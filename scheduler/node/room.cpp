// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/step.h"

#include <algorithm>

// How room is made: first idle weight sets are dropped, which hurts nobody who runs; then instances
// of lower classes are offloaded; then evicted, as the policy allows. Nothing is begun unless it
// all together suffices.
namespace berth::node {

struct Step::Victim {
    InstanceName name;
    int64_t priority = 0;
    TimePoint since;
    uint64_t offload_bytes = 0;
    uint64_t evict_bytes = 0;
};

namespace {

template <typename Victims>
void order_victims(Victims& victims, const std::vector<policies::VictimOrder>& order) {
    std::sort(victims.begin(), victims.end(), [&order](const auto& a, const auto& b) {
        for (policies::VictimOrder by : order) {
            if (by == policies::VictimOrder::kLowestPriority && a.priority != b.priority)
                return a.priority < b.priority;
            if (by == policies::VictimOrder::kLargestReclaimable && a.evict_bytes != b.evict_bytes)
                return a.evict_bytes > b.evict_bytes;
            if (by == policies::VictimOrder::kYoungestFirst && a.since != b.since)
                return a.since > b.since;
        }
        return a.name < b.name;
    });
}

} // namespace

uint64_t Step::coming_bytes(const DeviceId& device) const {
    uint64_t bytes = 0;
    for (const auto& [key, set] : s_.weights)
        if (set.device == device && set.dropping)
            bytes += set.bytes;
    for (const auto& [name, i] : s_.instances) {
        if (i.device != device || !i.process_alive)
            continue;
        if (i.state == InstanceState::kPreempting && i.desired == Desired::kSuspended)
            bytes += i.grant_bytes;
        else if ((i.state == InstanceState::kPreempting && i.desired == Desired::kEvicted) ||
                 i.substate == "Killed")
            bytes += i.grant_bytes + i.overhead_bytes;
    }
    for (const auto& [id, load] : s_.loads)
        if (load.key.device == device && load.state == Load::State::kEnding)
            bytes += placed_bytes(load);
    return bytes;
}

std::vector<Step::Victim> Step::find_victims(const DeviceId& device, const Taker& who,
                                             Decision& decision) const {
    std::vector<Victim> victims;
    for (const auto& [name, i] : s_.instances) {
        if (i.device != device || !i.process_alive || object_of(i) == who.object)
            continue;
        std::string no;
        const bool up = i.state == InstanceState::kRunning || i.state == InstanceState::kPaused ||
                        i.state == InstanceState::kSuspended || i.state == InstanceState::kStarting;
        if (!preemptible(s_, i))
            no = "its class may not be preempted";
        else if (who.priority - i.priority < s_.policy.preemption.min_priority_delta)
            no = "its priority " + std::to_string(i.priority) + " is not " +
                 std::to_string(s_.policy.preemption.min_priority_delta) + " below " +
                 std::to_string(who.priority);
        else if (!up || i.substate == "Killed")
            no = "it is " + std::string(to_string(i.state)) + " already";
        else if (i.grant_state == GrantState::kUnconfirmed)
            no = "its engine is not connected";
        if (!no.empty()) {
            decision.candidates.push_back({object_of(i), no, false, i.grant_bytes});
            continue;
        }
        Victim one{name, i.priority, i.since, 0, i.grant_bytes + i.overhead_bytes};
        if (i.session && (i.state == InstanceState::kRunning || i.state == InstanceState::kPaused))
            one.offload_bytes = i.grant_bytes;
        victims.push_back(one);
    }
    order_victims(victims, s_.policy.preemption.victim_order);
    return victims;
}

bool Step::make_room(const DeviceId& device, uint64_t shortage, const Taker& who,
                     std::string& why) {
    const uint64_t coming = coming_bytes(device);
    if (coming >= shortage)
        return true;
    const uint64_t missing = shortage - coming;
    Decision decision;
    decision.kind = "Preempt";
    decision.object = who.object;
    decision.inputs = {{"device", device.value},
                       {"missing", format_bytes(missing)},
                       {"priority", std::to_string(who.priority)},
                       {"mode", std::string(policies::to_string(s_.policy.mode))}};
    std::vector<WeightSet*> idle;
    for (auto& [key, set] : s_.weights)
        if (set.device == device && !set.dropping && !set.pinned && !set.keys.contains(who.keep) &&
            lease_holders(s_, set).empty())
            idle.push_back(&set);
    std::sort(idle.begin(), idle.end(),
              [](const WeightSet* a, const WeightSet* b) { return a->last_used < b->last_used; });
    uint64_t found = 0;
    size_t sets = 0;
    for (; sets < idle.size() && found < missing; ++sets)
        found += idle[sets]->bytes;

    std::vector<Victim> victims;
    if (who.preempts_lower)
        victims = find_victims(device, who, decision);
    policies::Rung rung = policies::Rung::kOffload;
    size_t count = 0;
    auto take = [&](auto bytes_of) {
        uint64_t sum = found;
        for (count = 0; count < victims.size() && sum < missing; ++count)
            sum += bytes_of(victims[count]);
        return sum >= missing;
    };
    const auto& modes = s_.policy.preemption.modes;
    const bool may_offload =
        std::find(modes.begin(), modes.end(), policies::Rung::kOffload) != modes.end();
    bool enough = found >= missing;
    if (!enough && may_offload)
        enough = take([](const Victim& one) { return one.offload_bytes; });
    if (!enough && s_.policy.preemption.fallback_evict) {
        rung = policies::Rung::kEvict;
        enough = take([](const Victim& one) { return one.evict_bytes; });
    }
    if (!enough) {
        why = who.preempts_lower ? "nothing that may be preempted or dropped frees enough"
                                 : "its class preempts nobody, and no idle weight set frees enough";
        count = 0;
        sets = 0;
    }
    for (size_t n = 0; n < idle.size(); ++n)
        decision.candidates.push_back({"weights/" + idle[n]->id.value,
                                       n < sets ? "idle: dropped" : "not needed", n < sets,
                                       idle[n]->bytes});
    for (size_t n = 0; n < victims.size(); ++n)
        decision.candidates.push_back(
            {"instance/" + victims[n].name.value,
             n < count ? std::string(policies::to_string(rung))
             : enough  ? "not needed"
                       : "too small",
             n < count,
             rung == policies::Rung::kOffload ? victims[n].offload_bytes : victims[n].evict_bytes});
    for (const Decision::Candidate& one : decision.candidates)
        if (one.taken)
            decision.winner += (decision.winner.empty() ? "" : ", ") + one.name;
    decision.carried_out = enough && s_.policy.mode == policies::PolicyMode::kEnforce;
    decision.outcome = !enough ? why
                       : decision.carried_out
                           ? format_bytes(missing) + " will be freed"
                           : "nothing is done: the policy's mode is " +
                                 std::string(policies::to_string(s_.policy.mode));
    const std::string gist = decision.outcome + "|" + decision.winner;
    if (who.last_decision == nullptr || *who.last_decision != gist) {
        if (who.last_decision != nullptr)
            *who.last_decision = gist;
        if (s_.policy.mode != policies::PolicyMode::kOff)
            act(decision);
    }
    if (!decision.carried_out) {
        why = decision.outcome;
        return false;
    }
    for (size_t n = 0; n < sets; ++n)
        drop(*idle[n]);
    for (size_t n = 0; n < count; ++n) {
        const bool idle_grant = rung == policies::Rung::kOffload && victims[n].offload_bytes == 0;
        if (!idle_grant)
            begin_rung(*find(victims[n].name), rung, HeldBy::kPlanner,
                       s_.policy.preemption.grace_period);
    }
    return true;
}

} // namespace berth::node
