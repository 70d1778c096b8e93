// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/step.h"

// What an operator may ask of which state, and what is said when it is not possible.
namespace berth::node {

using policies::Rung;

namespace {

Error precondition(std::string message, std::string reason) {
    return Error{ErrorCode::kFailedPrecondition, std::move(message), std::move(reason), 0};
}

// Whether the state is what the rung leads to.
bool is_there(InstanceState state, Rung mode) {
    return (mode == Rung::kPause && state == InstanceState::kPaused) ||
           (mode == Rung::kOffload && state == InstanceState::kSuspended) ||
           (mode == Rung::kEvict && state == InstanceState::kEvicted);
}

} // namespace

std::optional<Error> Step::preempt_refusal(const Instance& i, Rung mode) const {
    const std::string name = i.name.value, state(to_string(i.state));
    if (mode == Rung::kShrink)
        return Error{ErrorCode::kUnsupported,
                     "Shrink is still to come; use Pause, Offload or Evict", "NotSupported", 0};
    if (!preemptible(s_, i))
        return precondition(name + " is of class " + i.spec.class_name +
                                ", which may not be preempted (preemptible: false)",
                            "NotPreemptible");
    if (i.state == InstanceState::kSucceeded || i.state == InstanceState::kFailed)
        return precondition(name + " has ended (" + state + "); there is nothing to preempt",
                            "NotRunning");
    if (mode == Rung::kEvict || is_there(i.state, mode))
        return std::nullopt;
    if (i.spec.engine.driver == policies::DriverKind::kProcess)
        return Error{ErrorCode::kUnsupported,
                     name + " is a plain process (driver: process) and cannot " +
                         std::string(policies::to_string(mode)) + "; use Evict",
                     "NotSupported", 0};
    if (i.state == InstanceState::kEvicted || i.state == InstanceState::kSuspended)
        return precondition(name + " is " + state + ", which is further down than " +
                                std::string(policies::to_string(mode)) + "; resume it first",
                            "NotRunning");
    if (i.state == InstanceState::kPreempting)
        return precondition(name + " is being preempted already; wait for it, or use Evict",
                            "OperationInProgress");
    if (i.state != InstanceState::kRunning && i.state != InstanceState::kPaused)
        return precondition(name + " is " + state + ", not Running; wait for it, or use Evict",
                            "NotRunning");
    if (!i.session)
        return Error{ErrorCode::kUnavailable,
                     "the engine of " + name + " is not connected now; try again, or use Evict",
                     "EngineNotConnected", 0};
    return std::nullopt;
}

void Step::on(const OperatorPreempt& event) {
    if (s_.operations.contains(event.operation))
        return; // the same request again
    Operation operation = requested(event, OperationKind::kPreempt);
    operation.mode = operation.reached = event.mode;
    Instance* i = find(event.instance);
    if (i == nullptr)
        return refuse_operation(operation, instance_not_found(event.instance));
    // A move of the planner's to the same place becomes the operator's.
    const bool joins = i->state == InstanceState::kPreempting && !i->operation &&
                       i->desired == desired_of(event.mode) && preemptible(s_, *i);
    if (std::optional<Error> no = preempt_refusal(*i, event.mode); no && !joins)
        return refuse_operation(operation, std::move(*no));
    if (i->operation && event.mode != Rung::kEvict && !is_there(i->state, event.mode))
        return refuse_operation(operation, precondition("operation " + i->operation->value +
                                                            " is under way on " + i->name.value +
                                                            "; wait for it, or use Evict",
                                                        "OperationInProgress"));
    if (event.dry_run) {
        const bool frees = !is_there(i->state, event.mode) && event.mode != Rung::kPause;
        const uint64_t bytes =
            i->grant_bytes + (event.mode == Rung::kEvict ? i->overhead_bytes : 0);
        return answer_operation(operation, std::string(policies::to_string(event.mode)) + " of " +
                                               i->name.value + " (now " +
                                               std::string(to_string(i->state)) + ") would free " +
                                               format_bytes(frees ? bytes : 0));
    }
    if (is_there(i->state, event.mode)) {
        i->held_by = HeldBy::kOperator;
        dirty(*i);
        return answer_operation(operation, i->name.value + " is " +
                                               std::string(to_string(i->state)) + " already");
    }
    if (i->operation)
        finish_operation(*i->operation,
                         precondition("overtaken by operation " + operation.id.value, "Superseded"),
                         "overtaken by operation " + operation.id.value);
    operation.started_at = operation.phase_started = now_;
    s_.operations[operation.id] = operation;
    i->operation = operation.id;
    act(PersistOperation{operation});
    if (joins) {
        i->held_by = HeldBy::kOperator;
        dirty(*i);
        return;
    }
    begin_rung(*i, event.mode, HeldBy::kOperator,
               event.grace.value_or(s_.policy.preemption.grace_period));
}

} // namespace berth::node
