// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"

#include <algorithm>
#include <chrono>

// Demand that a policy's triggers see (RequestArrival is the shim's own: it raises the gate without
// asking), and the windows in which a class may run.
namespace berth::node {

using policies::TriggerKind;

namespace {

// Reports have a few percentiles: the next one that is not below.
size_t reported(double percentile) {
    const auto at = std::lower_bound(kPercentiles.begin(), kPercentiles.end(), percentile);
    return std::min(static_cast<size_t>(at - kPercentiles.begin()), kPercentiles.size() - 1);
}

double measured(const Counters& counters, const policies::Trigger& trigger) {
    const size_t n = reported(trigger.percentile);
    return trigger.metric == "tpot" ? counters.tpot_ms.at(n) : counters.ttft_ms.at(n);
}

double milliseconds(Nanoseconds duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
}

bool misses(const Counters& counters, const policies::SloSpec& slo) {
    const size_t n = reported(slo.percentile);
    return (slo.ttft.count() > 0 && counters.ttft_ms.at(n) > milliseconds(slo.ttft)) ||
           (slo.tpot.count() > 0 && counters.tpot_ms.at(n) > milliseconds(slo.tpot));
}

bool serves(const Instance& i) {
    return i.session && !i.devices.empty() &&
           (i.state == InstanceState::kRunning || i.state == InstanceState::kPaused);
}

} // namespace

bool Step::is_demanded(const Instance& i) const {
    const auto found = s_.demands.find(i.spec.class_name);
    return found != s_.demands.end() && !i.devices.empty() &&
           found->second.words.contains(i.devices.front()) && // there as on all of its devices
           i.counters.requests_waiting > 0;
}

// What its latest report says; true when the planner must look at it.
bool Step::weigh_report(Instance& i) {
    const bool was_burning = i.burning;
    i.burning = i.spec.slo && misses(i.counters, *i.spec.slo);
    for (const policies::Trigger& trigger : s_.policy.triggers)
        if (trigger.on == TriggerKind::kSloBurn && trigger.class_name == i.spec.class_name)
            i.burning = i.burning || measured(i.counters, trigger) > milliseconds(trigger.target);
    for (const policies::Trigger& trigger : s_.policy.triggers)
        if (trigger.class_name == i.spec.class_name && trigger.on != TriggerKind::kRequestArrival &&
            trigger.on != TriggerKind::kSchedule)
            return true;
    return was_burning != i.burning;
}

void Step::watch_demand() {
    std::map<std::string, Demand> now;
    for (const policies::Trigger& trigger : s_.policy.triggers) {
        if (trigger.on != TriggerKind::kQueueDepth && trigger.on != TriggerKind::kSloBurn)
            continue;
        Demand& demand = now[trigger.class_name];
        Demand& before = s_.demands[trigger.class_name];
        for (const auto& [name, i] : s_.instances) {
            if (i.spec.class_name != trigger.class_name || !serves(i))
                continue;
            for (const DeviceId& device : i.places()) {
                if (trigger.on == TriggerKind::kQueueDepth) {
                    if (i.counters.requests_waiting <= trigger.above)
                        continue;
                    const TimePoint since =
                        before.queue_since.contains(device) ? before.queue_since[device] : now_;
                    demand.queue_since[device] = since;
                    if (now_ - since < trigger.for_time) {
                        wake(since + trigger.for_time);
                        continue;
                    }
                    demand.words[device] = std::to_string(i.counters.requests_waiting) +
                                           " requests wait at " + name.value + ", more than " +
                                           std::to_string(trigger.above);
                } else if (const double value = measured(i.counters, trigger);
                           value > milliseconds(trigger.target)) {
                    demand.words[device] = trigger.metric + " of " + name.value + " is " +
                                           std::to_string(static_cast<int64_t>(value)) +
                                           " ms at percentile " +
                                           std::to_string(static_cast<int>(trigger.percentile)) +
                                           ", the target is " + format_duration(trigger.target);
                }
            }
        }
    }
    for (auto& [class_name, before] : s_.demands) {
        Demand& demand = now[class_name];
        demand.ended_at = before.ended_at;
        for (const auto& [device, words] : before.words)
            if (!demand.words.contains(device)) {
                demand.ended_at[device] = now_;
                act(EmitEvent{false, "device/" + device.value, "DemandEnded",
                              "class " + class_name + " demands no more there"});
            }
        for (const auto& [device, words] : demand.words)
            if (!before.words.contains(device))
                act(EmitEvent{false, "device/" + device.value, "Demand",
                              std::string("class ").append(class_name).append(": ").append(words)});
    }
    s_.demands = std::move(now);
}

// Where a class is in demand, those that would give way pause (it costs them nothing but time), and
// go on as soon as it has ended. Their memory is taken when it is needed (see grow).
void Step::answer_demand(Board& board) {
    const bool may_pause = allows(s_.policy.preemption, policies::Rung::kPause);
    for (Board::Row& row : board.rows()) {
        for (Instance* i : row.instances) {
            if (!i->process_alive)
                continue;
            std::string words;
            int64_t priority = 0;
            const bool demanded = higher_demand(*i, row.device->id, words, priority);
            if (i->state == InstanceState::kPaused && i->held_by == HeldBy::kPlanner && !demanded &&
                !i->on_hold && window_open(i->spec.class_name)) {
                resume_paused(*i);
                continue;
            }
            const bool can_pause = i->session || is_plain_process(*i);
            if (!demanded || i->state != InstanceState::kRunning || !can_pause || !may_pause ||
                i->operation || i->command)
                continue;
            Decision decision;
            decision.kind = "Preempt";
            decision.object = "device/" + row.device->id.value;
            decision.inputs = {{"demand", words}, {"priority", std::to_string(priority)}};
            decision.carried_out = s_.policy.mode == policies::PolicyMode::kEnforce;
            decision.candidates.push_back({object_of(*i), "Pause", true, 0});
            decision.winner = object_of(*i);
            decision.outcome = decision.carried_out ? "paused while the demand lasts"
                                                    : not_enforced_words(s_.policy);
            decide(*i, decision);
            if (decision.carried_out)
                begin_rung(*i, policies::Rung::kPause, HeldBy::kPlanner,
                           s_.policy.preemption.grace_period);
        }
    }
}

// Whether a class that this instance gives way to is in demand on the device.
bool Step::higher_demand(const Instance& i, const DeviceId& device, std::string& words,
                         int64_t& priority) const {
    if (!preemptible(s_, i))
        return false;
    for (const auto& [class_name, demand] : s_.demands) {
        const auto here = demand.words.find(device);
        const policies::PriorityClass* one = s_.policy.find_class(class_name);
        if (here == demand.words.end() || one == nullptr || !one->preempts_lower ||
            one->value - effective_priority(s_, i) < s_.policy.preemption.min_priority_delta)
            continue;
        words = "class " + class_name + ": " + here->second;
        priority = one->value;
        return true;
    }
    return false;
}

namespace {

policies::CivilTime civil_time(const WallClock& wall, TimePoint now) {
    using namespace std::chrono;
    const sys_seconds local{seconds(wall.unix_seconds + wall.utc_offset_seconds) +
                            duration_cast<seconds>(now - wall.at)};
    const auto day = floor<days>(local);
    const year_month_day date{day};
    const hh_mm_ss time{local - day};
    return {static_cast<int>(date.year()), static_cast<int>(static_cast<unsigned>(date.month())),
            static_cast<int>(static_cast<unsigned>(date.day())),
            static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count())};
}

} // namespace

bool Step::window_open(const std::string& class_name) const {
    const auto found = s_.windows.find(class_name);
    if (found == s_.windows.end() || !s_.wall.known)
        return true;
    const policies::CivilTime now = civil_time(s_.wall, now_);
    return std::any_of(found->second.begin(), found->second.end(),
                       [&now](const policies::Cron& cron) { return policies::matches(cron, now); });
}

std::string Step::window_words(const Instance& i) const {
    std::string words;
    for (const policies::Trigger& trigger : s_.policy.triggers)
        if (trigger.on == TriggerKind::kSchedule && trigger.class_name == i.spec.class_name)
            words += (words.empty() ? "it may in: '" : "', '") + trigger.cron;
    return words + "' (minute hour day month weekday)";
}

// Each minute may open or close one.
void Step::watch_windows() {
    if (s_.windows.empty() || !s_.wall.known)
        return;
    const auto since = std::chrono::duration_cast<std::chrono::seconds>(now_ - s_.wall.at).count();
    const int64_t local = s_.wall.unix_seconds + s_.wall.utc_offset_seconds + since;
    wake(s_.wall.at + std::chrono::seconds(since + 60 - ((local % 60) + 60) % 60));
}

// Its time is over: it gives its memory back the gentlest way that the policy allows.
void Step::close_window(Instance& i) {
    const auto& spec = s_.policy.preemption;
    if (s_.policy.mode != policies::PolicyMode::kEnforce)
        return;
    const bool can_offload = i.session && i.state == InstanceState::kRunning;
    if (i.state == InstanceState::kRunning && !i.session && !is_plain_process(i))
        return; // its engine is away: when it is back
    if (can_offload && allows(spec, policies::Rung::kOffload))
        begin_rung(i, policies::Rung::kOffload, HeldBy::kPlanner, spec.grace_period);
    else if (spec.fallback_evict || allows(spec, policies::Rung::kEvict))
        begin_rung(i, policies::Rung::kEvict, HeldBy::kPlanner, spec.grace_period);
    else if (allows(spec, policies::Rung::kPause) && i.state == InstanceState::kRunning)
        begin_rung(i, policies::Rung::kPause, HeldBy::kPlanner, spec.grace_period);
    else
        return;
    tell(i, false, "OutsideSchedule",
         "its class " + i.spec.class_name + " may not run now; " + window_words(i));
}

} // namespace berth::node
