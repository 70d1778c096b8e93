// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"
#include "scheduler/node/ranks.h"

#include <algorithm>
#include <array>

// How room is made: first idle weight sets are dropped, which hurts nobody who runs; then instances
// of lower classes give a part of their memory, all of it, or end, as the policy allows and no
// further than is needed. Nothing is begun unless it all together suffices.
namespace berth::node {

using policies::Rung;

namespace {

// What a victim could give on one device, by the furthest rung that it may be taken to.
struct Victim {
    const Instance* i = nullptr;
    int64_t priority = 0;
    uint64_t shrink_bytes = 0;
    uint64_t offload_bytes = 0;
    uint64_t evict_bytes = 0;
    uint64_t times = 1;       // of its grant there: one for each of its ranks
    Rung rung = Rung::kEvict; // chosen
    uint64_t bytes = 0;       // that it gives by that

    uint64_t at_most(Rung furthest) const {
        uint64_t most = shrink_bytes;
        if (furthest >= Rung::kOffload)
            most = std::max(most, offload_bytes);
        return furthest >= Rung::kEvict ? std::max(most, evict_bytes) : most;
    }
    uint64_t by(Rung one) const {
        return one == Rung::kShrink    ? shrink_bytes
               : one == Rung::kOffload ? offload_bytes
                                       : evict_bytes;
    }
};

void order_victims(std::vector<Victim>& victims, const std::vector<policies::VictimOrder>& order) {
    std::sort(victims.begin(), victims.end(), [&order](const Victim& a, const Victim& b) {
        for (policies::VictimOrder by : order) {
            if (by == policies::VictimOrder::kLowestPriority && a.priority != b.priority)
                return a.priority < b.priority;
            if (by == policies::VictimOrder::kLargestReclaimable && a.evict_bytes != b.evict_bytes)
                return a.evict_bytes > b.evict_bytes;
            if (by == policies::VictimOrder::kYoungestFirst && a.i->since != b.i->since)
                return a.i->since > b.i->since;
        }
        return a.i->name < b.i->name;
    });
}

// The first of them in order that together give `missing`; none of them without need, and each no
// further down than is needed. Empty: they do not suffice.
std::vector<Victim> choose(const std::vector<Victim>& victims, Rung furthest, uint64_t missing) {
    std::vector<Victim> chosen;
    uint64_t sum = 0;
    for (Victim one : victims) {
        if (sum >= missing)
            break;
        one.bytes = one.at_most(furthest);
        one.rung = one.bytes == one.shrink_bytes    ? Rung::kShrink
                   : one.bytes == one.offload_bytes ? Rung::kOffload
                                                    : Rung::kEvict;
        if (one.bytes == 0)
            continue;
        sum += one.bytes;
        chosen.push_back(one);
    }
    if (sum < missing)
        return {};
    for (auto one = chosen.begin(); one != chosen.end();) {
        const bool spare = sum - one->bytes >= missing;
        sum -= spare ? one->bytes : 0;
        one = spare ? chosen.erase(one) : std::next(one);
    }
    for (auto one = chosen.rbegin(); one != chosen.rend(); ++one)
        for (Rung rung : {Rung::kShrink, Rung::kOffload}) {
            const uint64_t gives = one->by(rung);
            if (rung >= one->rung || gives == 0 || sum - one->bytes + gives < missing)
                continue;
            sum = sum - one->bytes + gives;
            one->rung = rung;
            one->bytes = gives;
            break;
        }
    for (auto one = chosen.rbegin(); one != chosen.rend(); ++one) {
        if (one->rung != Rung::kShrink)
            continue;
        const uint64_t spare =
            grant_bytes_whole(std::min(sum - missing, one->bytes) / one->times) * one->times;
        one->bytes -= spare;
        sum -= spare;
    }
    return chosen;
}

} // namespace

bool allows(const policies::PreemptionSpec& spec, Rung rung) {
    return std::find(spec.modes.begin(), spec.modes.end(), rung) != spec.modes.end();
}

std::string not_enforced_words(const policies::PolicySpec& policy) {
    return "nothing is done: the policy's mode is " + std::string(policies::to_string(policy.mode));
}

std::tuple<int64_t, size_t, size_t, size_t, size_t> Step::RoomPlan::cost() const {
    int64_t highest = moves.empty() ? INT64_MIN : moves.front().priority;
    std::array<size_t, 4> by_rung{};
    for (const Move& move : moves) {
        highest = std::max(highest, move.priority);
        ++by_rung.at(static_cast<size_t>(move.rung));
    }
    return {highest, by_rung[static_cast<size_t>(Rung::kEvict)],
            by_rung[static_cast<size_t>(Rung::kOffload)],
            by_rung[static_cast<size_t>(Rung::kShrink)], drops.size()};
}

// Why an instance is no victim of that taker; "" when it is one.
std::string Step::victim_refusal(const Instance& i, const Taker& who) const {
    const bool up = i.state == InstanceState::kRunning || i.state == InstanceState::kPaused ||
                    i.state == InstanceState::kSuspended || i.state == InstanceState::kStarting;
    const int64_t priority = effective_priority(s_, i);
    if (!preemptible(s_, i))
        return "its class may not be preempted";
    if (who.priority - priority < s_.policy.preemption.min_priority_delta)
        return "its priority " + std::to_string(priority) + " is not " +
               std::to_string(s_.policy.preemption.min_priority_delta) + " below " +
               std::to_string(who.priority);
    if (!up || i.substate == "Killed")
        return "it is " + std::string(to_string(i.state)) + " already";
    if (i.grant_state == GrantState::kUnconfirmed)
        return "its engine is not connected";
    return "";
}

// Until when it is spared, and why: it has just come (preemptExemptTime), or it was disturbed often
// enough (disruptionBudget).
std::optional<TimePoint> Step::spared_until(const Instance& i, std::string& reason,
                                            std::string& why) const {
    const policies::PreemptionSpec& spec = s_.policy.preemption;
    if (i.state == InstanceState::kRunning && now_ - i.running_since < spec.exempt_time) {
        reason = "PreemptExempt";
        why = "it runs for " + format_duration(now_ - i.running_since) +
              " only (preemptExemptTime: " + format_duration(spec.exempt_time) + ")";
        return i.running_since + spec.exempt_time;
    }
    const auto& budget = spec.disruption_budget;
    const auto first = std::find_if(i.disruptions.begin(), i.disruptions.end(),
                                    [&](TimePoint at) { return now_ - at < budget.window; });
    const auto count = static_cast<uint64_t>(i.disruptions.end() - first);
    if (count < budget.preemptions_max)
        return std::nullopt;
    reason = "DisruptionBudgetExhausted";
    why = "it was preempted " + std::to_string(count) + " times within " +
          format_duration(budget.window) +
          " (disruptionBudget: " + std::to_string(budget.preemptions_max) + ")";
    return budget.preemptions_max == 0
               ? TimePoint::max()
               : *(i.disruptions.end() - static_cast<long>(budget.preemptions_max)) + budget.window;
}

// Whether somebody who is served before the taker waits for that very set: dropping it would only
// make him load it again.
bool Step::is_awaited(const Board& board, const Board::Resident& here, const Taker& who) const {
    const auto before = [&](const Instance* i) {
        return waits(*i) && (who.instance != nullptr ? comes_before(s_, *i, *who.instance)
                                                     : effective_priority(s_, *i) >= who.priority);
    };
    // One of several ranks that knows its place waits for that rank's part alone.
    const auto needs = [&](const Instance* i) {
        return i->spec.ranks == 1 || i->state != InstanceState::kLoading ||
               std::ranges::any_of(here.set->keys, [&](const LoadKey& key) {
                   return waits_for(*i, *board.model_of(*i), key);
               });
    };
    return std::ranges::any_of(here.models, [&](size_t model) {
        return std::ranges::any_of(board.waiters(model),
                                   [&](const Instance* i) { return before(i) && needs(i); });
    });
}

Step::RoomPlan Step::plan_room(const Board& board, const Board::Row& row, uint64_t needed_bytes,
                               const Taker& who) {
    const DeviceId& device = row.device->id;
    RoomPlan plan;
    plan.device = device;
    plan.spares = who.furthest == Rung::kShrink;
    plan.reason = "InsufficientMemory";
    plan.missing_bytes = needed_bytes > row.free_bytes ? needed_bytes - row.free_bytes : 0;
    if (plan.missing_bytes <= row.coming_bytes) {
        plan.enough = true;
        return plan;
    }
    const uint64_t missing = plan.missing_bytes - row.coming_bytes;
    Decision& decision = plan.decision;
    decision.kind = "Preempt";
    decision.object = who.object;
    decision.inputs = {{"device", device.value},
                       {"missing", format_bytes(missing)},
                       {"priority", std::to_string(who.priority)},
                       {"mode", std::string(policies::to_string(s_.policy.mode))}};
    std::vector<const WeightSet*> idle;
    for (const Board::Resident& here : row.sets) {
        const WeightSet& set = *here.set;
        if (!set.dropping && !set.pinned && !here.leased && !who.keeps(set) &&
            !is_awaited(board, here, who))
            idle.push_back(&set);
    }
    std::sort(idle.begin(), idle.end(), [](const WeightSet* a, const WeightSet* b) {
        return a->last_used != b->last_used ? a->last_used < b->last_used : a->id < b->id;
    });
    uint64_t found = 0;
    size_t sets = 0;
    for (; sets < idle.size() && found < missing; ++sets)
        found += idle[sets]->bytes;

    const policies::PreemptionSpec& spec = s_.policy.preemption;
    std::vector<Victim> victims, spared;
    TimePoint until = TimePoint::max();
    std::string spared_reason, spared_why;
    for (const Instance* i : row.instances) {
        if (!who.preempts_lower || !i->process_alive || i == who.instance)
            continue;
        std::string no = victim_refusal(*i, who);
        if (!no.empty()) {
            decision.candidates.push_back({object_of(*i), no, false, i->grant_bytes});
            continue;
        }
        Victim one{.i = i, .priority = effective_priority(s_, *i)};
        one.times = i->times_on(device);
        const bool answers =
            i->session && !i->command &&
            (i->state == InstanceState::kRunning || i->state == InstanceState::kPaused);
        const uint64_t least = std::max(grant_bytes_min(*i), i->grant_bytes_least);
        const bool spares_none = i->shrink_spares && now_ < i->grow_after; // as it has shown
        if (answers && allows(spec, Rung::kShrink) && who.furthest >= Rung::kShrink &&
            i->grant_bytes > least && !spares_none)
            one.shrink_bytes = grant_bytes_whole(i->grant_bytes - least) * one.times;
        if (answers && allows(spec, Rung::kOffload) && who.furthest >= Rung::kOffload)
            one.offload_bytes = i->grant_bytes * one.times;
        if ((spec.fallback_evict || allows(spec, Rung::kEvict)) && who.furthest >= Rung::kEvict) {
            const bool is_kept = std::ranges::any_of(row.sets, [&](const Board::Resident& here) {
                return i->leases(here.set->id, device) && who.keeps(*here.set);
            });
            one.evict_bytes = (i->grant_bytes + i->overhead_bytes) * one.times +
                              (is_kept ? 0 : board.sole_weights_bytes(*i, row));
        }
        std::string reason, why;
        if (const auto end = who.burning ? std::nullopt : spared_until(*i, reason, why)) {
            if (*end < until || spared_reason.empty()) {
                spared_reason = reason;
                spared_why = object_of(*i) + ": " + why;
            }
            until = std::min(until, *end);
            decision.candidates.push_back({object_of(*i), why, false, one.evict_bytes});
            spared.push_back(one);
            continue;
        }
        victims.push_back(one);
    }
    order_victims(victims, spec.victim_order);
    std::vector<Victim> chosen;
    plan.enough = found >= missing;
    for (Rung furthest : {Rung::kShrink, Rung::kOffload, Rung::kEvict}) {
        if (plan.enough)
            break;
        chosen = choose(victims, furthest, missing - found);
        plan.enough = !chosen.empty();
    }
    if (!plan.enough) {
        plan.why = who.preempts_lower
                       ? "nothing that may be preempted or dropped frees enough"
                       : "its class preempts nobody, and no idle weight set frees enough";
        std::vector<Victim> all = victims;
        all.insert(all.end(), spared.begin(), spared.end());
        order_victims(all, spec.victim_order);
        if (!spared.empty() && !choose(all, Rung::kEvict, missing - found).empty()) {
            plan.reason = spared_reason;
            plan.why = spared_why;
            wake(until);
        }
        sets = 0;
    }
    for (size_t n = 0; n < idle.size(); ++n) {
        decision.candidates.push_back({"weights/" + idle[n]->id.value,
                                       n < sets ? "idle: dropped" : "not needed", n < sets,
                                       idle[n]->bytes});
        if (n < sets)
            plan.drops.push_back(idle[n]->id);
    }
    for (const Victim& one : victims) {
        const auto taken = std::find_if(chosen.begin(), chosen.end(),
                                        [&one](const Victim& other) { return other.i == one.i; });
        const bool is_taken = taken != chosen.end();
        decision.candidates.push_back({object_of(*one.i),
                                       is_taken      ? std::string(policies::to_string(taken->rung))
                                       : plan.enough ? "not needed"
                                                     : "too small",
                                       is_taken, is_taken ? taken->bytes : one.evict_bytes});
        if (is_taken)
            plan.moves.push_back(
                {one.i->name, taken->rung, taken->bytes,
                 one.i->grant_bytes - std::min(taken->bytes / one.times, one.i->grant_bytes),
                 one.priority});
    }
    for (const Decision::Candidate& one : decision.candidates)
        if (one.taken)
            decision.winner += (decision.winner.empty() ? "" : ", ") + one.name;
    decision.carried_out = plan.enough && s_.policy.mode == policies::PolicyMode::kEnforce;
    decision.outcome = !plan.enough           ? plan.why
                       : decision.carried_out ? format_bytes(missing) + " will be freed"
                                              : not_enforced_words(s_.policy);
    return plan;
}

// On record once, not with each new figure.
void Step::note_plan(const RoomPlan& plan, const Taker& who) {
    const std::string gist = plan.decision.outcome + "|" + plan.decision.winner;
    if (plan.decision.kind.empty() || (who.last_decision != nullptr && *who.last_decision == gist))
        return;
    if (who.last_decision != nullptr)
        *who.last_decision = gist;
    if (s_.policy.mode != policies::PolicyMode::kOff)
        act(plan.decision);
}

// False: the policy's mode lets nothing be done.
bool Step::carry_out(const RoomPlan& plan, Board& board, std::string* last_decision) {
    if (plan.decision.kind.empty())
        return true; // it comes already
    Taker who;
    who.last_decision = last_decision;
    note_plan(plan, who);
    if (!plan.decision.carried_out)
        return false;
    for (const WeightSetId& set : plan.drops)
        drop(s_.weights.at({plan.device, set}));
    for (const RoomPlan::Move& move : plan.moves) {
        Instance& victim = *find(move.name);
        // It is on several of the devices that are cleared, and gives way on all at once.
        if (victim.state == InstanceState::kPreempting && rung_of(victim.desired) >= move.rung &&
            (rung_of(victim.desired) != Rung::kShrink ||
             victim.grant_bytes_next <= move.grant_left_bytes))
            continue;
        disturb(victim);
        if (move.rung == Rung::kShrink) {
            begin_shrink(victim, move.grant_left_bytes, HeldBy::kPlanner);
            victim.shrink_spares = plan.spares;
        } else {
            begin_rung(victim, move.rung, HeldBy::kPlanner, s_.policy.preemption.grace_period);
        }
        board.placed(victim);
    }
    board.refresh(plan.device);
    return true;
}

// One more disruption; those that no budget counts any more are forgotten.
void Step::disturb(Instance& i) {
    const Nanoseconds window = s_.policy.preemption.disruption_budget.window;
    std::erase_if(i.disruptions, [&](TimePoint at) { return now_ - at >= window; });
    if (i.disruptions.empty() || i.disruptions.back() != now_)
        i.disruptions.push_back(now_);
    dirty(i);
}

bool Step::make_room(const DeviceId& device, uint64_t shortage, const Taker& who,
                     std::string& why) {
    Board board(s_);
    const Board::Row& row = *board.find(device);
    const RoomPlan plan = plan_room(board, row, row.free_bytes + shortage, who);
    if (!plan.enough) {
        note_plan(plan, who);
        why = plan.why;
        return false;
    }
    if (!carry_out(plan, board, who.last_decision)) {
        why = plan.decision.outcome;
        return false;
    }
    return true;
}

} // namespace berth::node
