// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"
#include "scheduler/node/ranks.h"

#include <algorithm>

// Who goes where. An instance is placed when its devices have room for its process, the least of
// its grant and, if they are not resident, its weights, beside what is spoken for: what those who
// matter more and wait as well will need. Its grant is what is left of that, up to its limit. Of
// several devices it gets all or none.
namespace berth::node {

namespace {

std::string list_of(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names)
        text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
}

std::string rejections(const Decision& decision) {
    std::string text;
    for (const Decision::Candidate& one : decision.candidates)
        if (!one.taken)
            text += (text.empty() ? "" : "; ") + one.name + ": " + one.why;
    return text;
}

} // namespace

std::vector<Instance*> Step::by_priority() {
    std::vector<Instance*> all;
    for (auto& [name, i] : s_.instances)
        all.push_back(&i);
    std::sort(all.begin(), all.end(),
              [this](const Instance* a, const Instance* b) { return comes_before(s_, *a, *b); });
    return all;
}

// Why it must wait whatever room there is; empty: it need not.
std::string Step::held_back(const Instance& i, std::string& words) {
    if (i.on_hold) {
        words = "on hold; `berth release " + i.name.value + "` lets it go";
        return "OnHold";
    }
    if (!window_open(i.spec.class_name)) {
        words = "its class " + i.spec.class_name + " may not run now; " + window_words(i);
        return "OutsideSchedule";
    }
    return "";
}

void Step::place(Instance& i, Board& board) {
    std::string words;
    if (std::string reason = held_back(i, words); !reason.empty())
        return wait_for_room(i, reason, words);
    const policies::ModelSpec* model = board.model_of(i);
    Decision decision;
    decision.kind = "Place";
    decision.object = object_of(i);
    std::vector<Fit> fits = find_fits(i, board, decision);
    const size_t count = i.spec.device_count;
    if (fits.size() < count) {
        std::vector<std::string> here;
        for (const auto& [id, device] : s_.devices)
            here.push_back(id.value);
        const bool known = !decision.candidates.empty();
        const bool soon = std::any_of(
            decision.candidates.begin(), decision.candidates.end(),
            [](const Decision::Candidate& one) { return one.why.rfind("cordoned", 0) != 0; });
        return wait_for_room(
            i,
            !known ? "DeviceNotFound"
            : soon ? "WaitingForDevice"
                   : "DeviceUnavailable",
            known ? "it needs " + std::to_string(count) + " of its devices, " +
                        std::to_string(fits.size()) + " will take it now: " + rejections(decision)
                  : "none of its devices is on this node; here are: " + list_of(here),
            &decision);
    }
    if (std::string over = quota_words(i, fits.front()); !over.empty()) {
        note_fits(i, fits, decision);
        return wait_for_room(i, "QuotaExceeded", over, &decision);
    }
    const bool all_fit =
        std::all_of(fits.begin(), fits.begin() + static_cast<long>(count),
                    [](const Fit& fit) { return fit.need_bytes <= fit.available_bytes; });
    if (!all_fit)
        return find_room(i, board, fits, decision);
    note_fits(i, fits, decision);
    fits.resize(count);
    i.devices.assign(std::max<size_t>(count, i.spec.ranks), DeviceId());
    for (const Fit& fit : fits) {
        const size_t first =
            i.spec.ranks == 1 ? static_cast<size_t>(&fit - fits.data()) : fit.first_rank;
        std::fill_n(i.devices.begin() + static_cast<long>(first), i.spec.ranks_each(),
                    fit.row->device->id);
        for (Decision::Candidate& one : decision.candidates)
            one.taken = one.taken || one.name == "device/" + fit.row->device->id.value;
        decision.winner += (decision.winner.empty() ? "" : ", ") + fit.row->device->id.value;
    }
    const std::vector<LoadKey> missing =
        model == nullptr ? std::vector<LoadKey>() : missing_parts(s_, i, *model);
    if (missing.empty()) {
        decision.outcome = "started";
        decide(i, decision);
        return start_process(i, board, fits);
    }
    decision.outcome = "its weights are loaded first";
    decide(i, decision);
    std::string where;
    for (const LoadKey& key : missing)
        where += (where.empty() ? "" : ", ") + key.device.value +
                 (key.ranks > 1 ? " (rank " + std::to_string(key.rank) + ")" : "");
    enter(i, InstanceState::kLoading, "", "", model->path + " onto " + where);
    for (const LoadKey& key : missing)
        start_load(key, ModelName(model->name), i.priority);
    board.placed(i);
}

// What is spoken for there by those who come before. What they cannot get now anyway is lent to
// those who would give way to them.
uint64_t Step::claimed_bytes(const Instance& i, const Board::Row& row) const {
    if (!preemptible(s_, i))
        return row.claimed_before_bytes;
    return row.claimed_before_bytes - std::min(row.claimed_before_bytes, row.lent_bytes);
}

// What it would take to make room for it on each of its devices.
Step::Search Step::search_room(Instance& i, Board& board, const std::vector<Fit>& fits,
                               bool was_told) {
    const policies::PriorityClass* of_class = s_.policy.find_class(i.spec.class_name);
    const policies::ModelSpec* model = board.model_of(i);
    Search found;
    found.who = Taker{object_of(i),     &i,          effective_priority(s_, i), false, {},
                      &i.last_decision, is_urgent(i)};
    found.who.preempts_lower = of_class != nullptr && of_class->preempts_lower;
    const std::optional<int64_t> below =
        found.who.preempts_lower
            ? std::optional(found.who.priority - s_.policy.preemption.min_priority_delta)
            : std::nullopt;
    for (const Fit& fit : fits) {
        const uint64_t needed = fit.need_bytes + claimed_bytes(i, *fit.row);
        if (fit.need_bytes <= fit.available_bytes) {
            ++found.ready;
            continue;
        }
        if (!Board::could_have(*fit.row, needed, below) && (found.failed || was_told))
            continue;
        if (model != nullptr) {
            found.who.keep.clear();
            const uint32_t end = fit.first_rank + i.spec.ranks_each();
            for (uint32_t rank = fit.first_rank; rank < end; ++rank)
                found.who.keep.push_back(load_key(*model, fit.row->device->id, rank));
        }
        RoomPlan plan;
        if (fit.need_bytes > fit.row->most_bytes())
            plan.why = "the device can never hold that";
        else
            plan = plan_room(board, *fit.row, needed, found.who);
        if (plan.enough) {
            found.plans.push_back(std::move(plan));
        } else if (!found.failed) {
            found.failed = std::move(plan);
            found.failed_on = &fit;
        }
    }
    return found;
}

// No device has room as it is: the cheapest ones are cleared, or it waits.
void Step::find_room(Instance& i, Board& board, const std::vector<Fit>& fits, Decision& decision) {
    // Many wait for long: their figures are told anew once a second, not with each event.
    const bool was_told =
        i.reason == "InsufficientMemory" && !i.operation && now_ - i.refused_at < kRefusalTold;
    Search found = search_room(i, board, fits, was_told);
    const size_t count = i.spec.device_count;
    std::vector<RoomPlan>& plans = found.plans;
    if (found.ready + plans.size() < count) {
        if (found.who.preempts_lower)
            board.lend(i); // meanwhile others may use what there is
        if (was_told &&
            (!found.failed || found.failed->reason.empty() || found.failed->reason == i.reason))
            return;
        const DeviceId& device = found.failed_on->row->device->id;
        std::string words;
        if (count > 1)
            words = "it needs " + std::to_string(count) + " devices at once, room is on " +
                    std::to_string(found.ready + plans.size()) + "; ";
        words += "needs " + format_bytes(found.failed_on->need_bytes) + " on " + device.value +
                 ", " + room_words(s_, device, found.failed_on->available_bytes) +
                 (found.failed->why.empty() ? "" : "; " + found.failed->why);
        note_fits(i, fits, decision);
        note_plan(*found.failed, found.who);
        i.refused_at = now_;
        return wait_for_room(
            i, found.failed->reason.empty() ? "InsufficientMemory" : found.failed->reason, words,
            &decision);
    }
    note_fits(i, fits, decision);
    std::sort(plans.begin(), plans.end(), [](const RoomPlan& a, const RoomPlan& b) {
        return a.cost() != b.cost() ? a.cost() < b.cost() : a.device < b.device;
    });
    plans.resize(count - found.ready);
    uint64_t coming = 0;
    std::string where;
    for (const RoomPlan& plan : plans) {
        coming += plan.missing_bytes;
        where += (where.empty() ? "" : ", ") + plan.device.value;
        if (!carry_out(plan, board, &i.last_decision)) {
            wait_for_room(i, "InsufficientMemory", plan.decision.outcome, &decision);
            return;
        }
    }
    wait_for_room(i, "WaitingForReclaim", format_bytes(coming) + " are being freed on " + where,
                  &decision);
}

// Online work is never delayed by a timer that protects batch: one that itself is no victim, or has
// promised a latency, need not wait for anybody's exempt time or budget to be placed.
bool Step::is_urgent(const Instance& i) const {
    const policies::PriorityClass* of_class = s_.policy.find_class(i.spec.class_name);
    return of_class != nullptr && of_class->preempts_lower &&
           (!of_class->preemptible || i.spec.slo.has_value());
}

// A decision is recorded once, not with each new figure.
void Step::decide(Instance& i, const Decision& decision) {
    const std::string gist = decision.kind + "|" + decision.outcome + "|" + decision.winner;
    if (gist == i.last_decision || s_.policy.mode == policies::PolicyMode::kOff)
        return;
    i.last_decision = gist;
    act(decision);
}

void Step::wait_for_room(Instance& i, const std::string& reason, const std::string& message,
                         const Decision* decision) {
    if (i.operation && reason != "WaitingForReclaim") {
        const Error error{ErrorCode::kResourceExhausted, message, reason, 0};
        // It was evicted and stays so: a failed resume leaves nothing half done.
        if (i.came_from == InstanceState::kEvicted) {
            i.desired = Desired::kEvicted;
            i.held_by = HeldBy::kOperator;
            enter(i, InstanceState::kEvicted, "", reason, message);
        }
        finish_operation(*i.operation, error, message);
        if (i.state == InstanceState::kEvicted)
            return;
    }
    if (decision != nullptr && i.reason != reason) {
        Decision one = *decision;
        one.outcome = reason + ": " + message;
        one.carried_out = false;
        if (s_.policy.mode != policies::PolicyMode::kOff)
            act(std::move(one));
    }
    if (i.reason == reason && i.message == message)
        return;
    if (i.reason == reason) { // the figures move; that is no event
        i.message = message;
        return;
    }
    enter(i, i.state, "", reason, message);
}

// What its tenant has on the devices, of what it may have; empty: there is room for this too.
std::string Step::quota_words(const Instance& i, const Fit& fit) const {
    const uint64_t wanted = (grant_bytes_min(i) + fit.row->overhead_bytes) * i.spec.grants();
    const std::optional<uint64_t> left = quota_left(s_, i.spec.tenant);
    if (!left || wanted <= *left)
        return "";
    const policies::TenantSpec* tenant = find_tenant(s_, i.spec.tenant);
    return "tenant " + tenant->name + " may have " + format_bytes(tenant->device_memory_bytes_max) +
           " on devices beside shared weights (maxDeviceMemory), " + format_bytes(*left) +
           " of it are left; this needs " + format_bytes(wanted);
}

} // namespace berth::node
