// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/service.h"

#include "scheduler/node/step.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

// One socket, one process that answers it, as a generation that only grows; others may stand by,
// warm. Whoever is to answer is told Serve. That the one before does nothing more is seen to first:
// it has ended, or is ending and is killed once more, and the kernel gives the journal's lock to
// one process alone.
namespace berth::node {

namespace {

constexpr Nanoseconds kServeTime = std::chrono::seconds(10);
constexpr Nanoseconds kServeRetryTime = std::chrono::milliseconds(200);
constexpr Nanoseconds kServeOwedTime = std::chrono::seconds(1);

// It would be started if there were room.
bool wants_to_start(const Instance& i) {
    return !i.process_alive && !i.on_hold && !i.remove_wanted &&
           (i.state == InstanceState::kPending || i.state == InstanceState::kLoading ||
            (i.state == InstanceState::kEvicted && i.held_by != HeldBy::kOperator));
}

// How near it is to answering; 0: it will not.
int readiness(const Instance& i) {
    if (!may_answer(i))
        return wants_to_start(i) ? 1 : 0;
    if (i.substate == "Killed" || i.remove_wanted ||
        (is_surge(i.name) && i.state != InstanceState::kRunning)) // its document is on trial
        return 0;
    return i.state == InstanceState::kRunning ? 3 : i.state == InstanceState::kStarting ? 2 : 0;
}

// Who should answer when nobody does: the readier one; else the one that has its turn.
bool is_readier(const Instance& a, const Instance& b) {
    return readiness(a) > readiness(b);
}

// Its process, or the next one, once its present one is to end.
bool comes_back(const Instance& i) {
    return !i.remove_wanted && !i.on_hold && i.held_by != HeldBy::kOperator;
}

} // namespace

std::string service_of(const policies::InstanceSpec& spec) {
    if (spec.engine.listen.empty() || spec.engine.driver != policies::DriverKind::kBerth)
        return {};
    return spec.standby_of.empty() ? spec.name : spec.standby_of;
}

const Instance* twin_of(const NodeState& state, const Instance& i) {
    const Instance* twin = nullptr;
    if (!i.service.empty())
        for (const auto& [name, other] : state.instances)
            if (&other != &i && other.service == i.service && other.stands_by != i.stands_by &&
                (twin == nullptr || is_readier(other, *twin)))
                twin = &other;
    return twin;
}

Instance* twin_of(NodeState& state, const Instance& i) {
    const Instance* twin = twin_of(static_cast<const NodeState&>(state), i);
    return twin == nullptr ? nullptr : &state.instances.at(twin->name);
}

TimePoint start_at(const NodeState& state, const Instance& i) {
    const Instance* active = i.stands_by ? twin_of(state, i) : nullptr;
    return active != nullptr && may_answer(*active) && has_taken_over(*active)
               ? std::max(i.restart_at, *active->serves_since + kStandbyAfterTime)
               : i.restart_at;
}

bool has_successor(const NodeState& state, const Instance& i) {
    if (i.service.empty() || i.stands_by)
        return false;
    const Instance* twin = twin_of(state, i);
    return (twin != nullptr && readiness(*twin) > 0) || comes_back(i);
}

bool gives_way(const NodeState& state, const Instance& i) {
    const auto is_promoted = [&](const auto& one) {
        const Instance& other = one.second;
        return other.service == i.service && other.stands_by && promotes(state, other);
    };
    return !i.service.empty() && !i.stands_by && std::ranges::any_of(state.instances, is_promoted);
}

bool promotes(const NodeState& state, const Instance& i) {
    const auto found = i.operation ? state.operations.find(*i.operation) : state.operations.end();
    return found != state.operations.end() && found->second.kind == OperationKind::kPromote;
}

std::string wait_for_twin(const NodeState& state, const Instance& i) {
    if (i.stands_by)
        return {};
    const Instance* twin = twin_of(state, i);
    if (twin == nullptr || is_warm(*twin) || twin->on_hold || twin->remove_wanted)
        return {};
    if (twin->state == InstanceState::kFailed)
        return "its standby " + twin->name.value + " failed with the new document (" +
               twin->message + "); this one goes on as it was";
    const bool comes = twin->process_alive || twin->state == InstanceState::kLoading ||
                       (twin->state == InstanceState::kPending &&
                        (twin->reason.empty() || twin->reason == "BackOff"));
    return comes ? "its standby " + twin->name.value + " is started with the new document first"
                 : std::string();
}

// Of those who share a socket one answers. Nothing changes while that one lives.
void Step::settle_roles() {
    std::map<std::string_view, std::vector<Instance*>> services;
    for (auto& [name, i] : s_.instances) // at first whom the others stand by for
        if (!i.service.empty()) {
            std::vector<Instance*>& all = services[i.service];
            all.insert(i.spec.standby_of.empty() ? all.begin() : all.end(), &i);
        }
    std::erase_if(s_.services, [&](const auto& one) { return !services.contains(one.first); });
    for (const auto& [service, all] : services) {
        settle_roles(all);
        if (is_newly_over(s_, all))
            act(ForgetRequests{all.front()->name});
        if (is_newly_unkept(s_, all)) {
            act(ForgetRequests{all.front()->name, /*noted=*/false, /*drop=*/true});
            for (const Instance* one : all)
                dirty(*one);
        }
    }
}

void Step::settle_roles(const std::vector<Instance*>& all) {
    Instance* active = nullptr; // who has answered, or was to
    for (Instance* one : all)
        if (!one->stands_by && (active == nullptr || (may_answer(*one) && !may_answer(*active))))
            active = one;
    Instance* next = active;
    for (Instance* one : all)
        if (next == nullptr || (!may_answer(*next) && is_readier(*one, *next)))
            next = one;
    for (Instance* one : all)
        if (one != next && !one->stands_by) {
            one->stands_by = true;
            one->serves_since.reset(); // its end says nothing of what is in flight by now
            dirty(*one);
        }
    if (next->stands_by && next->process_alive) {
        take_over(*next, active);
    } else if (next->stands_by) {
        next->stands_by = false;
        dirty(*next);
    }
    for (Instance* one : all)
        one->floor_only =
            one->stands_by && one->spec.standby_grant == policies::StandbyGrant::kTakeOver;
}

void Step::take_over(Instance& i, const Instance* before) {
    i.stands_by = i.floor_only = false;
    i.substate.clear();
    begin_generation(i);
    tell(i, true, "TakesOver",
         "generation " + std::to_string(i.generation) +
             (before == nullptr  ? ": nobody else is there any more"
              : may_act(*before) ? ": " + before->name.value + " has let go of the socket"
                                 : ": " + before->name.value + " has ended or is ending"));
    if (i.state == InstanceState::kRunning)
        serve(i);
}

// All of them know the latest, as any may be gone when the next one begins.
void Step::begin_generation(Instance& i) {
    for (const auto& [name, other] : s_.instances)
        if (other.service == i.service)
            i.generation = std::max(i.generation, other.generation);
    ++i.generation;
    dirty(i);
    for (auto& [name, other] : s_.instances)
        if (other.service == i.service && &other != &i) {
            other.generation = i.generation;
            dirty(other);
        }
    if (const uint32_t ends = take_poisoned(s_, i); ends > 0) {
        act(ForgetRequests{i.name, /*noted=*/true});
        tell(i, true, "RequestsForgotten",
             std::to_string(ends) + " processes in a row have ended within " +
                 format_duration(kSteadyTime) +
                 " of answering: what was in flight at the end of each of them is not tried again, "
                 "its connections end");
    }
}

// Whoever does so already, as that generation, has done it.
void Step::serve(Instance& i) {
    if (!i.serves_since)
        i.serves_since = now_;
    arm(i.serve_timer, Timer{Timer::Kind::kServe, i.name, {}}, now_ + kServeTime);
    send(i, CommandKind::kServe);
}

void Step::served(Instance& i, const CommandDone& event) {
    cancel(i.serve_timer);
    if (event.error && event.error->reason == "StaleGeneration" && !i.stale_told) {
        // Its records were lost, the journal was not: a number that is certainly later.
        i.stale_told = true;
        i.generation = std::max<uint64_t>(
            i.generation, s_.wall.known ? static_cast<uint64_t>(s_.wall.unix_seconds) : 1'000'000);
        begin_generation(i);
        tell(i, true, "GenerationLost",
             event.error->message + "; it goes on as generation " + std::to_string(i.generation));
        return serve(i);
    }
    if (event.error &&
        (event.error->reason == "Fenced" || event.error->code == ErrorCode::kUnavailable)) {
        // The one before has not let go yet: it is ending.
        arm(i.serve_timer, Timer{Timer::Kind::kServe, i.name, {}}, now_ + kServeRetryTime);
        return;
    }
    if (event.error) {
        i.reason = "ServeFailed";
        i.message = event.error->message;
        tell(i, true, i.reason, i.message + "; its process is ended");
        return kill(i);
    }
    if (promotes(s_, i)) {
        operation_phase(i, "takingOver");
        finish_operation(*i.operation, std::nullopt,
                         i.name.value + " answers " + i.spec.engine.listen + " as generation " +
                             std::to_string(i.generation));
    }
}

// Neither done nor refused within its time, or it is time to try again.
void Step::serve_due(Instance& i) {
    if (!i.process_alive || i.stands_by || i.substate == "Killed")
        return;
    if (i.state != InstanceState::kRunning) // its memory goes before; it is not forgotten
        return arm(i.serve_timer, Timer{Timer::Kind::kServe, i.name, {}}, now_ + kServeOwedTime);
    if (!i.command || i.command_kind != CommandKind::kServe)
        return serve(i);
    if (!i.session)
        return; // it is told when it is back
    i.reason = "ServeTimedOut";
    i.message = "did not take the socket within " + format_duration(kServeTime);
    tell(i, true, i.reason, i.message + "; its process is ended");
    kill(i);
}

// Its own word, when it is back: what it serves as, or 0.
void Step::reconcile_service(Instance& i, uint64_t generation) {
    if (i.service.empty())
        return;
    Instance* twin = twin_of(s_, i);
    if (i.stands_by && generation > i.generation &&
        (twin == nullptr || generation > twin->generation)) {
        // The record of its promotion was lost, the promotion was not.
        i.stands_by = false;
        i.generation = generation;
        if (i.substate == "Standby")
            i.substate.clear();
        dirty(i);
        if (twin == nullptr)
            return;
        twin->stands_by = true;
        twin->serves_since.reset();
        if (twin->state == InstanceState::kRunning && twin->substate.empty())
            twin->substate = "Standby";
        twin->generation = generation;
        return dirty(*twin);
    }
    if (i.stands_by && generation > 0) {
        i.reason = "StaleGeneration";
        i.message = "serves as generation " + std::to_string(generation) + ", and that is over";
        tell(i, true, i.reason, i.message + "; its process is ended");
        return kill(i);
    }
    if (i.stands_by || i.engine_state == EngineState::kDraining) // it is on its way out
        return;
    if (generation != i.generation)
        return serve(i);
    if (i.command && i.command_kind == CommandKind::kServe) {
        i.command.reset();
        served(i, CommandDone{});
    }
}

void learn_least(NodeState& state, const Instance& i, uint64_t bytes) {
    if (bytes == 0)
        return;
    for (auto& [name, one] : state.instances)
        if (name == i.name || (!i.service.empty() && one.service == i.service))
            one.grant_bytes_least = bytes;
}

void Step::on(const ProcessDying& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive || !(i->process == event.process))
        return;
    i->dying = true;
    if (note_end(s_, *i, now_))
        act(NoteRequests{InstanceName(i->service)});
    if (!i->timer) // it may wait in a driver and never be gone
        arm(i->timer, Timer{Timer::Kind::kKilled, i->name, {}}, now_ + kDyingTime);
    if (twin_of(s_, *i) != nullptr) // what is left of it, too
        act(KillProcess{i->name, i->process});
}

void Step::on(const OperatorPromote& event) {
    if (s_.operations.contains(event.operation))
        return;
    Operation operation = requested(event, OperationKind::kPromote);
    Instance* i = find(event.instance);
    if (i == nullptr)
        return refuse_operation(operation, instance_not_found(event.instance));
    const std::string name = i->name.value;
    const auto refuse = [&](std::string words, std::string reason) {
        refuse_operation(operation, Error{ErrorCode::kFailedPrecondition, std::move(words),
                                          std::move(reason), 0});
    };
    Instance* active = twin_of(s_, *i);
    if (active == nullptr)
        return refuse(name + " has no standby and is none (standbyOf)", "NoStandby");
    if (!i->stands_by)
        return refuse(name + " answers the socket already; its standby is " + active->name.value,
                      "NotStandby");
    if (!is_warm(*i) || !i->session)
        return refuse(name + " is " + std::string(to_string(i->state)) +
                          " and cannot take over now; see `berth describe instance " + name + "`",
                      "NotReady");
    if (active->state == InstanceState::kUnkillable)
        return refuse(active->name.value + " is Unkillable: " + active->message, active->reason);
    for (const Instance* one : {i, active})
        if (one->operation)
            return refuse(one->name.value + ": operation " + one->operation->value +
                              " is under way; wait for it",
                          "OperationInProgress");
    if (event.dry_run)
        return answer_operation(operation, name + " would take over from " + active->name.value +
                                               ", which would start again and stand by");
    begin_operation(operation); // schedule() stops the other; what that leaves is taken over
}

} // namespace berth::node
