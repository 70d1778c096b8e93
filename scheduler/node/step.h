// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/limits.h"
#include "scheduler/node/reducer.h"

#include <set>
#include <string>
#include <vector>

// Inside scheduler/node/ only: one application of one event. The methods are spread over the files
// by topic, which the groups below name.
namespace berth::node {

class Step {
  public:
    Step(NodeState& state, TimePoint now) : s_(state), now_(now) {}
    std::vector<Action> run(const Event& event);

  private:
    // step.cpp: what all use
    void act(Action action); // records what has changed first, then appends
    void flush();            // PersistInstance for what has changed
    void enter(Instance& i, InstanceState state, std::string substate = {}, std::string reason = {},
               std::string message = {});
    void dirty(const Instance& i) { dirty_.insert(i.name); }
    Instance* find(const InstanceName& name);
    void tell(const Instance& i, bool warning, std::string reason, std::string message);
    uint64_t next_id() { return s_.next_id++; }
    void arm(std::optional<TimerId>& slot, Timer timer, TimePoint at);
    void cancel(std::optional<TimerId>& slot);
    void cancel_timers(Instance& i);
    void send(Instance& i, CommandKind kind, uint64_t grant_bytes = 0);
    void finish_operation(const OperationId& id, std::optional<Error> error, std::string message,
                          uint64_t bytes_freed = 0);
    void refuse_operation(Operation operation, Error error);
    void answer_operation(Operation operation, std::string message);
    void operation_phase(Instance& i, const std::string& name);
    void on(const DeviceSeen& event);
    void on(const DeadlineExpired& event);
    void on(const Shutdown& event);

    // documents.cpp
    void on(const DocumentsApplied& event);
    void apply_spec(Instance& i, const policies::InstanceSpec& spec);
    void remove(Instance& i);

    // loads.cpp, weights.cpp
    void on(const LoadRequested& event);
    void on(const LoadPlanned& event);
    void on(const LoadProgress& event);
    void on(const LoadSealed& event);
    void on(const LoadFailed& event);
    void on(const LoaderExited& event);
    Load& start_load(const LoadKey& key, const ModelName& model, int64_t priority);
    Load* find_load(const LoadKey& key);
    void try_go(Load& load);
    void refuse_load(Load& load, Error error);
    void end_load(Load& load, const std::optional<WeightSetId>& set, std::optional<Error> error);
    void load_stalled(LoadId id);
    Load& begin_load(Load load);
    // tiers.cpp
    void choose_source(Load& load);
    void fall_through(Load& load, const Error& error);
    void on(const WeightsStale& event);
    // tier_copies.cpp
    enum class Chance { kNone, kLater, kNow };
    Chance make_tier_room(const DeviceId& tier, const WeightSet& wanted);
    void trim_tier(const DeviceId& tier);
    Chance copy_chance(WeightSet& set, const DeviceId& tier);
    void schedule_tiers();
    void leave(WeightSet& set);
    void start_copy(WeightSet& set, const DeviceId& tier);
    void copy_planned(Load& load, const LoadPlanned& event);
    void copy_made(Load& load, uint64_t bytes);
    void end_copy(Load& load, const Error& error);
    void reader_gone(const Load& load);
    void on(const ImageWritten& event);
    void tell_progress(Load& load);
    void on(const WeightsAdopted& event);
    // publish.cpp
    void on(const PublishRequested& event);
    void on(const PrivateLoadEnded& event);
    void on(const CanaryExpected& event);
    void on(const CanaryReported& event);
    void ready(Instance& i);
    void on(const LeaseOpened& event);
    void on(const LeaseClosed& event);
    void on(const WeightsDropped& event);
    void on(const WeightsPin& event);
    void on(const WeightsEvict& event);
    void drop(WeightSet& set);
    std::string users_of(const WeightSet& set) const;

    // placement.cpp, room.cpp
    void schedule();
    std::vector<Instance*> by_priority();
    std::vector<const Device*> candidates(const Instance& i) const;
    uint64_t need_bytes(const Instance& i, const DeviceId& device) const;
    uint64_t spoken_for(const DeviceId& device, const Instance& taker, bool by_lower) const;
    void place(Instance& i);
    void start_process(Instance& i, const DeviceId& device, uint64_t available);
    uint64_t grant_size(const Instance& i, const DeviceId& device, uint64_t available) const;
    void wait_for_room(Instance& i, std::string reason, std::string message);
    // Starts to free `shortage` bytes for `who`; true when they are coming.
    struct Taker {
        std::string object;
        int64_t priority = 0;
        bool preempts_lower = false;
        LoadKey keep; // a set with this key is not dropped
        std::string* last_decision = nullptr;
    };
    bool make_room(const DeviceId& device, uint64_t shortage, const Taker& who, std::string& why);
    struct Victim;
    std::vector<Victim> find_victims(const DeviceId& device, const Taker& who,
                                     Decision& decision) const;
    uint64_t coming_bytes(const DeviceId& device) const;

    // preempt.cpp, rungs.cpp
    void on(const OperatorPreempt& event);
    std::optional<Error> preempt_refusal(const Instance& i, policies::Rung mode) const;
    void begin_rung(Instance& i, policies::Rung rung, HeldBy held_by, Nanoseconds grace);
    void rung_missed(Instance& i, const Error& why);
    void give_up(Instance& i, const Error& why);
    void settle(Instance& i, InstanceState state, uint64_t bytes_freed);
    void kill(Instance& i);
    void on(const CommandDone& event);
    void late_answer(Instance& i, const CommandDone& event);
    void on(const BytesConfirmed& event);
    void confirm(Instance& i, uint64_t claimed);

    // resume.cpp
    void on(const OperatorResume& event);
    std::optional<Error> resume_refusal(const Instance& i) const;
    bool resume_suspended(Instance& i, bool automatic, Error& why);
    void resume_done(Instance& i);
    void resume_failed(Instance& i, const Error& why);

    // sessions.cpp, death.cpp, recovery.cpp
    void on(const ProcessStarted& event);
    void on(const ProcessStartFailed& event);
    void on(const SessionOpened& event);
    void reconcile(Instance& i, EngineHeld held, uint64_t grant_bytes);
    void on(const SessionClosed& event);
    void on(const EngineStateChanged& event);
    void on(const EngineReport& event);
    void become_running(Instance& i);
    bool check_claim(Instance& i, uint64_t grant_bytes);
    void on(const ProcessExited& event);
    void process_gone(Instance& i);
    void ended(Instance& i, bool clean, const std::string& description,
               const std::string& log_path);
    void record_failure(Instance& i, const std::string& reason, const std::string& message);
    void on(const InstanceRecovered& event);
    void on(const OperationRecovered& event);
    void finish_recovery();
    void finish_recovered(const Operation& operation);

    NodeState& s_;
    TimePoint now_;
    std::vector<Action> actions_;
    std::set<InstanceName> dirty_;
};

// What must be as small as this after Offload, and how far the driver's figure may be from the
// engine's word.
uint64_t confirm_slack_bytes(DeviceKind kind);
Desired desired_of(policies::Rung rung);
policies::Rung rung_of(Desired desired);
std::string object_of(const Instance& i); // "instance/NAME"

// What an operator asked of an instance, as the operation that will answer it.
template <typename Event>
Operation requested(const Event& event, OperationKind kind) {
    Operation operation;
    operation.id = event.operation;
    operation.kind = kind;
    operation.instance = event.instance;
    operation.object = "instance/" + event.instance.value;
    operation.cause = event.reason;
    operation.dry_run = event.dry_run;
    return operation;
}

inline Error instance_not_found(const InstanceName& name) {
    return Error{ErrorCode::kNotFound, "no instance '" + name.value + "'; see `berth status`",
                 "InstanceNotFound", 0};
}

} // namespace berth::node
