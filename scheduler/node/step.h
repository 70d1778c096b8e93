// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/board.h"
#include "scheduler/node/limits.h"
#include "scheduler/node/reducer.h"
#include "scheduler/node/step_base.h"

#include <optional>
#include <string>
#include <vector>

// Inside scheduler/node/ only: one application of one event; the groups below name the files.
namespace berth::node {

struct Refusal;  // queue.h
struct RankRoom; // ranks.h

class Step : private StepBase {
  public:
    Step(NodeState& state, TimePoint now) : StepBase(state, now) {}
    std::vector<Action> run(const Event& event);

  private:
    // step.cpp
    void on(const DeviceSeen& event);
    void on(const DeadlineExpired& event);
    void on(const Shutdown& event);
    void on(const WallClockTold& event);
    // documents.cpp
    void on(const DocumentsApplied& event);
    void unpin_what_is_named_no_more(const policies::Documents& next);
    void move_returns(Nanoseconds idle_before);
    void follow_document(const policies::InstanceSpec& spec); // of one that may be new
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
    void drop_again();
    void wake_tiers();
    void on(const ImageWritten& event);
    void tell_progress(Load& load);
    void on(const WeightsAdopted& event);
    // publish.cpp
    void on(const PublishRequested& event);
    std::optional<Error> publish_refusal(const PublishRequested& event);
    void on(const PrivateLoadFilled& event);
    void on(const PrivateLoadEnded& event);
    void on(const CanaryExpected& event);
    void on(const CanaryReported& event);
    void ready(Instance& i);
    void on(const LeaseOpened& event);
    void on(const LeaseClosed& event);
    void on(const WeightsDropped& event);
    void on(const DropFailed& event);
    void finish_evict(const OperationId& operation, const WeightSetId& set);
    void take_up_drop(const Operation& operation);
    void on(const WeightsPin& event);
    void on(const WeightsEvict& event);
    void drop(WeightSet& set);
    std::string users_of(const WeightSet& set) const;
    struct Fit;      // planner.h
    struct RoomPlan; // planner.h
    struct Search;   // planner.h
    void schedule();
    void tend(Instance& i, Board& board);
    void place_unless_refused(Instance& i, Board& board, Refusal& known);
    void grow_all(Board& board);
    void grow(Instance& i, Board& board);
    uint64_t wanted_bytes(const Instance& i) const;
    void wake(TimePoint at); // the planner looks again then
    void arm_wake();
    // placement.cpp
    std::vector<Instance*> by_priority();
    std::string held_back(const Instance& i, std::string& words);
    void place(Instance& i, Board& board);
    std::vector<Fit> find_fits(const Instance& i, Board& board, Decision& decision);
    std::vector<Fit> in_order(const Instance& i, Board& board, std::vector<Fit> fits) const;
    static void weigh(const Instance& i, Board& board, const std::vector<uint32_t>& open, Fit& fit);
    static void swap_if_better(const Instance& i, Board& board, Fit& a, Fit& b);
    bool is_urgent(const Instance& i) const;
    static void note_fits(const Instance& i, const std::vector<Fit>& fits, Decision& decision);
    Search search_room(Instance& i, Board& board, const std::vector<Fit>& fits, bool was_told);
    void find_room(Instance& i, Board& board, const std::vector<Fit>& fits, Decision& decision);
    uint64_t claimed_bytes(const Instance& i, const Board::Row& row) const;
    std::string quota_words(const Instance& i, const Fit& fit) const;
    void start_process(Instance& i, Board& board, const std::vector<Fit>& fits);
    uint64_t grant_size(const Instance& i, const std::vector<Fit>& fits) const;
    void decide(Instance& i, const Decision& decision);
    void wait_for_room(Instance& i, const std::string& reason, const std::string& message,
                       const Decision* decision = nullptr);
    // room.cpp
    struct Taker; // planner.h
    // Starts to free `shortage` bytes for `who`; true when they are coming.
    bool make_room(const DeviceId& device, uint64_t shortage, const Taker& who, std::string& why);
    RoomPlan plan_room(const Board& board, const Board::Row& row, uint64_t needed_bytes,
                       const Taker& who);
    bool carry_out(const RoomPlan& plan, Board& board, std::string* last_decision);
    bool is_awaited(const Board& board, const Board::Resident& here, const Taker& who) const;
    void note_plan(const RoomPlan& plan, const Taker& who);
    std::string victim_refusal(const Instance& i, const Taker& who) const;
    std::optional<TimePoint> spared_until(const Instance& i, std::string& reason,
                                          std::string& why) const;
    void disturb(Instance& i);
    // demand.cpp
    bool weigh_report(Instance& i);
    void watch_demand();
    void answer_demand(Board& board);
    bool is_demanded(const Instance& i) const;
    bool higher_demand(const Instance& i, const DeviceId& device, std::string& words,
                       int64_t& priority) const;
    bool window_open(const std::string& class_name) const;
    std::string window_words(const Instance& i) const;
    void watch_windows();
    void close_window(Instance& i);
    // returns.cpp
    std::string return_refusal(const Instance& i, const Board::Row& row);
    uint64_t margin_bytes(const DeviceId& device) const;
    void come_back(Instance& i, Board& board);
    void watch_starvation();
    // preempt.cpp, rungs.cpp
    void on(const OperatorPreempt& event);
    std::optional<Error> preempt_refusal(const Instance& i, policies::Rung mode) const;
    void begin_rung(Instance& i, policies::Rung rung, HeldBy held_by, Nanoseconds grace);
    void take_rung(Instance& i, policies::Rung rung, bool again = false);
    std::optional<policies::Rung> next_rung(const Instance& i, policies::Rung missed) const;
    void rung_missed(Instance& i, const Error& why);
    void give_up(Instance& i, const Error& why);
    void settle(Instance& i, InstanceState state, uint64_t bytes_freed);
    std::string made_way_words(const Instance& i) const;
    void kill(Instance& i);
    void on(const CommandDone& event);
    void late_answer(Instance& i, const CommandDone& event);
    void on(const BytesConfirmed& event);
    void confirm(Instance& i, uint64_t claimed);
    void on(const ProcessStopped& event);
    // resize.cpp: while it runs
    void begin_shrink(Instance& i, uint64_t grant_bytes, HeldBy held_by);
    void shrunk(Instance& i, uint64_t left);
    void shrink_given_up(Instance& i);
    void reconcile_shrink(Instance& i, EngineHeld held, uint64_t grant_bytes);
    // Only a Running or Paused engine that is connected, within its limit; else nothing is done.
    void begin_grow(Instance& i, uint64_t grant_bytes);
    void grown(Instance& i, const CommandDone& event);
    void grow_refused(Instance& i, const BytesConfirmed& event);
    void grow_unanswered(Instance& i);
    void growth_over(Instance& i);
    std::string take_growth(Instance& i);
    void stop_growing(Instance& i);
    void reconcile_growth(Instance& i, uint64_t grant_bytes);
    // Back to its size before Shrink, as far as there is room.
    std::optional<Error> grow_back(Instance& i);
    void resume_shrunk(Instance& i, Operation operation);
    uint64_t growth_room(const Instance& i) const;
    // Whether the planner may give it back what a Shrink, or a resume into less room, has left out.
    bool may_grow(const Instance& i) const;
    // operators.cpp: hold, drain, cordon
    void on(const OperatorHold& event);
    void on(const OperatorDrain& event);
    void on(const DeviceCordon& event);
    void on(const DeviceDrain& event);
    void set_cordon(Device& device, bool cordoned, const std::string& reason);
    void send_away(Instance& i, const DeviceId& device, Nanoseconds timeout);
    void watch_drains();
    void watch_drain(Operation& operation);
    void end_phase(Operation& operation, const std::string& name);
    // resume.cpp
    void on(const OperatorResume& event);
    std::optional<Error> resume_refusal(const Instance& i) const;
    void resume_paused(Instance& i);
    bool resume_suspended(Instance& i, const RankRoom& room, Error& why);
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
    void on(const EngineHeard& event);
    void become_running(Instance& i);
    bool check_claim(Instance& i, uint64_t grant_bytes);
    void on(const ProcessInspected& event);
    // service.cpp: who answers a socket
    void settle_roles();
    void settle_roles(const std::vector<Instance*>& all);
    void take_over(Instance& i, const Instance* before);
    void begin_generation(Instance& i);
    void serve(Instance& i);
    void served(Instance& i, const CommandDone& event);
    void serve_due(Instance& i);
    void reconcile_service(Instance& i, uint64_t generation);
    struct Watching; // watching.h
    void on(const ProcessDying& event);
    void on(const OperatorPromote& event);
    struct Rolling; // rollout_step.h
    void on(const OperatorRollout& event);
    void on(const RolloutRecovered& event);
    void on(const DocumentRefused& event);
    void on(const ProcessExited& event);
    void on(const LeaderExited& event);
    void on(const KillRefused& event);
    void become_unkillable(Instance& i, std::string reason, std::string message);
    void kill_again(Instance& i);
    void on(const ProcessContinued& event);
    void go_on(Instance& i);
    void process_gone(Instance& i);
    void ended(Instance& i, bool clean, const std::string& description,
               const std::string& log_path);
    void record_failure(Instance& i, std::string reason, std::string message, bool steady = false);
    void on(const InstanceRecovered& event);
    void on(const OperationRecovered& event);
    void finish_recovery();
    void finish_recovered(const Operation& operation);

    TimePoint wake_ = TimePoint::max();
    bool plans_ = true; // false: the event changed nothing that a decision rests on
};

} // namespace berth::node
