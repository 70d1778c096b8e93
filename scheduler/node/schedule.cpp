// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"
#include "scheduler/node/queue.h"
#include "scheduler/node/ranks.h"
#include "scheduler/node/service.h"

#include <algorithm>

// One pass of the planner: after each event that may have changed anything it looks at everybody,
// the most important first. Whoever waits and comes before keeps its room from those behind.
namespace berth::node {

namespace {

bool is_settled(const Instance& i) {
    return i.state == InstanceState::kRunning || i.state == InstanceState::kPaused ||
           i.state == InstanceState::kSuspended || i.state == InstanceState::kStarting;
}

} // namespace

int64_t effective_priority(const NodeState& state, const Instance& i) {
    if (!i.boosted)
        return i.priority;
    int64_t next = INT64_MAX;
    for (const policies::PriorityClass& one : state.policy.classes)
        if (one.value > i.priority)
            next = std::min(next, one.value);
    return next == INT64_MAX ? i.priority : next;
}

bool comes_before(const NodeState& state, const Instance& a, const Instance& b) {
    const int64_t of_a = effective_priority(state, a), of_b = effective_priority(state, b);
    if (of_a != of_b)
        return of_a > of_b;
    return a.order != b.order ? a.order < b.order : a.name < b.name;
}

bool waits(const Instance& i) {
    if (i.on_hold || i.reason == "OutsideSchedule" || i.reason == "QuotaExceeded")
        return false;
    return waits_for_room(i) ||
           (i.state == InstanceState::kSuspended && i.held_by == HeldBy::kPlanner);
}

const policies::TenantSpec* find_tenant(const NodeState& state, const std::string& name) {
    for (const policies::TenantSpec& one : state.policy.tenants)
        if (one.name == name)
            return &one;
    return nullptr;
}

std::optional<uint64_t> quota_left(const NodeState& state, const std::string& tenant) {
    const policies::TenantSpec* spec = tenant.empty() ? nullptr : find_tenant(state, tenant);
    if (spec == nullptr || spec->device_memory_bytes_max == 0)
        return std::nullopt;
    uint64_t used = 0;
    for (const auto& [name, i] : state.instances)
        if (i.spec.tenant == tenant)
            used += (i.grant_bytes + i.overhead_bytes) * i.devices.size();
    const uint64_t most = spec->device_memory_bytes_max;
    return most > used ? most - used : 0;
}

void Step::wake(TimePoint at) {
    wake_ = std::min(wake_, std::max(at, now_));
}

void Step::arm_wake() {
    if (wake_ == TimePoint::max()) {
        cancel(s_.plan_timer);
        return;
    }
    if (s_.plan_timer && s_.plan_at == wake_)
        return;
    s_.plan_at = wake_;
    arm(s_.plan_timer, Timer{Timer::Kind::kPlan, {}, {}}, wake_);
}

void Step::schedule() {
    if (!s_.ready || s_.stopping)
        return;
    wake_ = TimePoint::max();
    for (auto& [id, load] : s_.loads)
        if (load.state == Load::State::kPlanning && load.phase == "waiting")
            try_go(load);
    settle_roles();
    watch_windows();
    watch_demand();
    watch_starvation();
    Board board(s_);
    for (auto& [name, i] : s_.instances)
        tend(i, board);
    answer_demand(board);
    Queue queue(s_, board);
    for (const Queue::Waiting& one : queue.all())
        if (one.claims)
            queue.move_claims(one, nullptr, &Board::Row::claimed_after_bytes);
    for (const Queue::Waiting& one : queue.all()) {
        Instance& i = *one.i;
        if (one.claims)
            queue.move_claims(one, &Board::Row::claimed_after_bytes, nullptr);
        // One that waited when the pass began may have been taken from since, by one before it.
        if (i.state == InstanceState::kSuspended)
            come_back(i, board);
        else if (!i.process_alive && i.state != InstanceState::kLoading && start_at(s_, i) <= now_)
            place_unless_refused(i, board, queue.refusal(one));
        if (const TimePoint start = start_at(s_, i); start > now_)
            wake(start);
        if (!waits(i) || i.process_alive != (i.state == InstanceState::kSuspended))
            continue;
        queue.move_claims(one, nullptr, &Board::Row::claimed_before_bytes);
        if (board.is_lent(i))
            queue.move_claims(one, nullptr, &Board::Row::lent_bytes);
    }
    grow_all(board);
    arm_wake();
}

// What was refused to one of its shape need not be asked again while nothing has changed.
void Step::place_unless_refused(Instance& i, Board& board, Refusal& known) {
    if (!known.reason.empty() && known.changes == board.changes() && !i.operation) {
        wait_for_room(i, known.reason, known.message);
        if (known.lent)
            board.lend(i);
        return;
    }
    place(i, board);
    if (!i.process_alive && i.state != InstanceState::kLoading && i.reason != "WaitingForReclaim" &&
        !i.reason.empty())
        known = {i.reason, i.message, board.changes(), board.is_lent(i)};
}

// What its document or the clock asks of one that has a process.
void Step::tend(Instance& i, Board& board) {
    if (!i.process_alive || i.substate == "Killed" || !is_settled(i))
        return;
    const bool restarts = i.restart_wanted || gives_way(s_, i);
    if (restarts && !i.remove_wanted)
        if (const std::string why = wait_for_twin(s_, i); !why.empty()) {
            if (i.message != why) {
                i.reason = "RolloutWaits";
                i.message = why;
                dirty(i);
                tell(i, false, i.reason, i.message);
            }
            return;
        }
    if (i.remove_wanted || restarts) {
        begin_rung(i, policies::Rung::kEvict, i.held_by, end_grace(s_, i));
        return board.placed(i);
    }
    if (!window_open(i.spec.class_name) && i.held_by == HeldBy::kNobody && !i.operation) {
        close_window(i);
        return board.placed(i);
    }
    const bool answers = i.state == InstanceState::kRunning && i.session && !i.command &&
                         !i.operation && !is_growing(i) && i.grant_state == GrantState::kHeld;
    if (!answers || s_.policy.mode == policies::PolicyMode::kOff)
        return;
    if (i.grant_bytes > grant_bytes_max(i.spec)) { // its limit was lowered
        if (now_ < i.grow_after)
            return wake(i.grow_after);
        tell(i, false, "LimitLowered",
             "its grant of " + format_bytes(i.grant_bytes) + " shrinks to " +
                 format_bytes(grant_bytes_max(i.spec)));
        begin_shrink(i, grant_bytes_max(i.spec), HeldBy::kNobody);
        board.placed(i);
    }
}

namespace {

// Requests wait for a larger grant, and nobody wants it to be small.
bool is_cramped(const NodeState& state, const Instance& i) {
    const bool is_kept_small = is_shrunk(i) && i.shrunk_by == HeldBy::kOperator;
    return i.cramped && !is_kept_small && !gives_room(state.rollouts, i.name);
}

// When it may have more. Requests that wait for a larger grant are all that it has to answer first.
TimePoint grow_at(const NodeState& state, const Instance& i) {
    return has_taken_over(i) && !is_cramped(state, i)
               ? std::max(i.grow_after, *i.serves_since + kFirstAnswersTime)
               : i.grow_after;
}

} // namespace

// Those who run may have more: what they have less than their request, what a Shrink or a resume
// into little room has left out, and, where there is demand or no request fits, up to their limit.
void Step::grow_all(Board& board) {
    std::vector<Instance*> wanting;
    for (auto& [name, i] : s_.instances)
        if (i.state == InstanceState::kRunning && i.session && !i.command && !i.operation &&
            !is_growing(i) && i.grant_state == GrantState::kHeld &&
            i.grant_bytes < wanted_bytes(i) && (i.substate.empty() || i.stands_by)) {
            const TimePoint after = grow_at(s_, i);
            if (after > now_)
                wake(after);
            else
                wanting.push_back(&i);
        }
    std::sort(wanting.begin(), wanting.end(),
              [this](const Instance* a, const Instance* b) { return comes_before(s_, *a, *b); });
    for (Instance* i : wanting)
        grow(*i, board);
}

namespace {

constexpr uint64_t kLeftLying = uint64_t{1} << 20; // of what could be had: less than a step

// The plans for as much more as can be had, up to `wanted`; none: there is nothing.
template <typename PlansFor>
auto most_room(uint64_t wanted, const PlansFor& plans_for) {
    const auto all_enough = [](const auto& plans) {
        return std::ranges::all_of(plans, [](const auto& plan) { return plan.enough; });
    };
    auto best = plans_for(wanted);
    if (all_enough(best))
        return best;
    best.clear();
    uint64_t low = 0, high = wanted; // can be had; cannot
    while (high - low > kLeftLying) {
        const uint64_t middle = low + (high - low) / 2;
        auto plans = plans_for(middle);
        const bool enough = all_enough(plans);
        (enough ? low : high) = middle;
        if (enough)
            best = std::move(plans);
    }
    return best;
}

} // namespace

// What it should have now.
uint64_t Step::wanted_bytes(const Instance& i) const {
    const uint64_t least = grant_bytes_min(i), most = grant_bytes_max(i.spec);
    uint64_t wanted = std::max(i.grant_bytes, least);
    if (i.floor_only) // more comes when it takes over
        return wanted;
    if (may_grow(i))
        wanted = std::max(wanted, std::min(i.grant_bytes_resume, most));
    if (is_demanded(i) || is_cramped(s_, i))
        wanted = most;
    return wanted;
}

void Step::grow(Instance& i, Board& board) {
    const uint64_t least = grant_bytes_min(i);
    uint64_t wanted = wanted_bytes(i);
    const bool needed = i.grant_bytes < least || is_demanded(i) || is_cramped(s_, i);
    std::vector<Board::Row*> rows;
    for (const DeviceId& device : i.places()) {
        rows.push_back(board.find(device));
        if (rows.back() == nullptr || (!needed && !return_refusal(i, *rows.back()).empty()))
            return;
    }
    if (const std::optional<uint64_t> quota = quota_left(s_, i.spec.tenant))
        wanted = std::min(wanted, i.grant_bytes + grant_bytes_whole(*quota / i.devices.size()));
    // Where it is needed it comes before those of lower rank, else behind all who still wait.
    const auto taken = [&](const Board::Row& row) {
        return needed ? board.spoken_for(row, i, false)
                      : row.claimed_before_bytes + margin_bytes(row.device->id);
    };
    const uint64_t room = room_for_each(i, board, taken).bytes;
    const uint64_t target = std::min(wanted, i.grant_bytes + grant_bytes_whole(room));
    const policies::PriorityClass* of_class = s_.policy.find_class(i.spec.class_name);
    if (target < wanted && needed && of_class != nullptr && of_class->preempts_lower) {
        Taker who{object_of(i),     &i,       effective_priority(s_, i), true, {},
                  &i.last_decision, i.burning};
        // Beyond its request only a burning SLO takes more from others than they can spare.
        who.furthest =
            i.grant_bytes < least || i.burning ? policies::Rung::kEvict : policies::Rung::kShrink;
        const auto plans_for = [&](uint64_t more) {
            std::vector<RoomPlan> plans;
            for (const Board::Row* row : rows)
                plans.push_back(
                    plan_room(board, *row, more * i.times_on(row->device->id) + taken(*row), who));
            return plans;
        };
        bool comes = false; // it grows when the bytes are free, on all of them
        for (const RoomPlan& plan : most_room(wanted - i.grant_bytes, plans_for))
            comes |= carry_out(plan, board, &i.last_decision) && !plan.decision.kind.empty();
        if (comes)
            return;
    }
    if (target <= i.grant_bytes)
        return;
    i.grow_after = now_ + kGrowRetryTime;
    begin_grow(i, target);
    board.placed(i);
}

} // namespace berth::node
