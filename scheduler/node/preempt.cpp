// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/step.h"

// What an operator may ask of which state, and what is said when it is not possible.
namespace berth::node {

using policies::Rung;

namespace {

Error precondition(std::string message, std::string reason) {
    return Error{ErrorCode::kFailedPrecondition, std::move(message), std::move(reason), 0};
}

// Whether the state is what the rung leads to. Of Shrink only the bytes can say.
bool is_there(InstanceState state, Rung mode) {
    return (mode == Rung::kPause && state == InstanceState::kPaused) ||
           (mode == Rung::kOffload && state == InstanceState::kSuspended) ||
           (mode == Rung::kEvict && state == InstanceState::kEvicted);
}

// Where a Shrink leads; an error when the instance cannot do with so little.
Result<uint64_t> shrink_target(const Instance& i, std::optional<uint64_t> asked) {
    const uint64_t least = grant_bytes_min(i);
    if (!asked)
        return least;
    if (grant_bytes_whole(*asked) >= least)
        return grant_bytes_whole(*asked);
    return fail(ErrorCode::kInvalidArgument,
                "Shrink of " + i.name.value + " to " + format_bytes(*asked) +
                    " is below its least grant, " + format_bytes(least) +
                    " (resources.requests.memory, in whole steps of 2 MiB); use Offload",
                "GrantTooSmall");
}

} // namespace

std::optional<Error> Step::preempt_refusal(const Instance& i, Rung mode) const {
    const std::string name = i.name.value, state(to_string(i.state));
    if (!preemptible(s_, i))
        return precondition(name + " is of class " + i.spec.class_name +
                                ", which may not be preempted (preemptible: false)",
                            "NotPreemptible");
    if (i.state == InstanceState::kSucceeded || i.state == InstanceState::kFailed)
        return precondition(name + " has ended (" + state + "); there is nothing to preempt",
                            "NotRunning");
    if (mode == Rung::kEvict || is_there(i.state, mode))
        return std::nullopt;
    if (i.state == InstanceState::kUnkillable)
        return precondition(name + " is Unkillable: " + i.message +
                                "; Evict sends SIGKILL to process " +
                                std::to_string(i.process.pid) + " again",
                            i.reason);
    if (is_plain_process(i) && mode != Rung::kPause)
        return Error{ErrorCode::kUnsupported,
                     name +
                         " is a plain process (driver: process): it gives no memory back while "
                         "it lives, so it cannot " +
                         std::string(policies::to_string(mode)) + "; use Pause or Evict",
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
    if (!i.session && !is_plain_process(i))
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
    const Result<uint64_t> target = shrink_target(*i, event.grant_bytes);
    // A move of the planner's to the same place becomes the operator's.
    const bool joins = i->state == InstanceState::kPreempting && !i->operation &&
                       i->desired == desired_of(event.mode) && preemptible(s_, *i) &&
                       (event.mode != Rung::kShrink || (target && i->grant_bytes_next <= *target));
    if (std::optional<Error> no = preempt_refusal(*i, event.mode); no && !joins)
        return refuse_operation(operation, std::move(*no));
    if (event.mode == Rung::kShrink && !target)
        return refuse_operation(operation, target.error());
    if (i->operation && event.mode != Rung::kEvict && !is_there(i->state, event.mode))
        return refuse_operation(operation, precondition("operation " + i->operation->value +
                                                            " is under way on " + i->name.value +
                                                            "; wait for it, or use Evict",
                                                        "OperationInProgress"));
    if (event.mode == Rung::kShrink && !joins && *target >= i->grant_bytes)
        return answer_operation(operation, i->name.value + " has a grant of " +
                                               format_bytes(i->grant_bytes) + " already");
    if (event.dry_run) {
        const bool frees = !is_there(i->state, event.mode) && event.mode != Rung::kPause;
        const uint64_t bytes = i->grant_bytes +
                               (event.mode == Rung::kEvict ? i->overhead_bytes : 0) -
                               (event.mode == Rung::kShrink ? *target : 0);
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
        supersede(*i->operation, operation.id);
    begin_operation(operation);
    if (joins) {
        (event.mode == Rung::kShrink ? i->shrunk_by : i->held_by) = HeldBy::kOperator;
        dirty(*i);
        return;
    }
    if (i->state == InstanceState::kUnkillable)
        return kill_again(*i);
    if (event.mode == Rung::kShrink) {
        return begin_shrink(*i, *target, HeldBy::kOperator);
    }
    begin_rung(*i, event.mode, HeldBy::kOperator,
               event.grace.value_or(s_.policy.preemption.grace_period));
}

} // namespace berth::node
