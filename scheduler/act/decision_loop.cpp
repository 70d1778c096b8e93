// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/decision_loop.h"

#include "base/fault_point.h"
#include "base/log.h"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <iterator>

namespace berth {

namespace {

using Clock = std::chrono::steady_clock;

// Decided and not yet carried out: beyond it events wait, so that the store's queue is never full.
constexpr size_t kStepsMax = 1'024;

// What is nothing but a record.
bool is_record(const node::Action& action) {
    return std::holds_alternative<node::PersistInstance>(action) ||
           std::holds_alternative<node::PersistOperation>(action) ||
           std::holds_alternative<node::PersistWeights>(action) ||
           std::holds_alternative<node::PersistDevice>(action) ||
           std::holds_alternative<node::PersistRollout>(action) ||
           std::holds_alternative<node::ForgetRollout>(action) ||
           std::holds_alternative<node::ForgetInstance>(action);
}

bool is_intent(const node::Action& action) {
    return is_record(action) || std::holds_alternative<node::KeepWeights>(action);
}

// What others can see: it comes after its record, also where a record alone would not be waited
// for. (NoteRequests, ConfirmBytes, InspectProcess look and change nothing.)
bool reaches_out(const node::Action& action) {
    return !is_record(action) && !std::holds_alternative<node::EmitEvent>(action) &&
           !std::holds_alternative<node::Decision>(action) &&
           !std::holds_alternative<node::ArmTimer>(action) &&
           !std::holds_alternative<node::CancelTimer>(action) &&
           !std::holds_alternative<node::NoteRequests>(action) &&
           !std::holds_alternative<node::ConfirmBytes>(action) &&
           !std::holds_alternative<node::InspectProcess>(action);
}

// That a connection has closed, that a process is ending, who answers its socket now: a client
// waits for it, and it holds no longer than the machine runs. A power cut takes the engines and
// their journal with it, so these records need not have reached the disk; they are for the case
// that this process ends.
bool ends_with_the_machine(const node::Event& event) {
    return std::holds_alternative<node::SessionClosed>(event) ||
           std::holds_alternative<node::ProcessDying>(event);
}

bool ends_with_the_machine(const node::Action& action) {
    const auto* command = std::get_if<node::SendCommand>(&action);
    return command != nullptr && command->kind == node::CommandKind::kServe;
}

// What is no engine's, or says that one is not to be tried again: its record is on disk first. What
// an engine is told is over with the machine, so that online waits for no disk before batch is told
// to yield; a power cut then finds the instance as it was wanted some milliseconds before. (Whoever
// has asked for it is told so once the request is on disk: AdminApi::recorded().)
bool wants_disk(const node::Action& action) {
    if (const auto* persist = std::get_if<node::PersistInstance>(&action))
        return persist->instance.state == node::InstanceState::kFailed;
    if (std::holds_alternative<node::PersistOperation>(action) ||
        std::holds_alternative<node::SendCommand>(action))
        return false;
    return is_record(action) || reaches_out(action);
}

// "StartProcess", "SendCommand Pause": kinds, for the names of fault points.
std::string kind_of(const node::Action& action) {
    const std::string words = node::describe(action);
    std::string kind = words.substr(0, words.find(' '));
    if (const auto* command = std::get_if<node::SendCommand>(&action))
        kind += " " + std::string(node::to_string(command->kind));
    return kind;
}

} // namespace

DecisionLoop::DecisionLoop(boost::asio::io_context& context, Store& store, Actor& actor)
    : context_(context), store_(store), actor_(actor) {
    trouble_ = store_.status().trouble;
    trouble_since_ = Clock::now();
    // The watcher runs on the store's thread: back to this one before anything is touched.
    store_.watch([this, alive = std::weak_ptr(alive_), &context = context_](StoreReport report) {
        boost::asio::post(context, [this, alive, report = std::move(report)] {
            if (!alive.expired())
                store_changed(report);
        });
    });
}

void DecisionLoop::post(node::Event event) {
    events_.push_back(std::move(event));
    run();
}

void DecisionLoop::run() {
    if (running_)
        return;
    running_ = true;
    const auto until = Clock::now() + kTurnMax;
    for (;;) {
        if (!events_.empty() && steps_.size() < kStepsMax) {
            node::Event event = std::move(events_.front());
            events_.pop_front();
            if (!hold(event))
                decide(event);
        } else if (!steps_.empty() && steps_.front()->ready) {
            if (Clock::now() > until) {
                run_later();
                break;
            }
            std::unique_ptr<Step> step = std::move(steps_.front());
            steps_.pop_front();
            carry_out(*step);
        } else {
            break;
        }
    }
    running_ = false;
}

void DecisionLoop::run_later() {
    if (std::exchange(turn_posted_, true))
        return;
    boost::asio::post(context_, [this, alive = std::weak_ptr(alive_)] {
        if (alive.expired())
            return;
        turn_posted_ = false;
        run();
    });
}

bool DecisionLoop::hold(node::Event& event) {
    if (!trouble_ || !state_.ready || std::holds_alternative<node::Shutdown>(event))
        return false;
    if (const auto* deadline = std::get_if<node::DeadlineExpired>(&event))
        fired_.emplace_back(deadline->timer, Clock::now());
    else if (!held_.hold(std::move(event)))
        log::warn("{} events wait until something can be written down again; a request more is "
                  "dropped",
                  held_.size());
    return true;
}

void DecisionLoop::decide(const node::Event& event) {
    auto step = std::make_unique<Step>();
    step->decided_at = Clock::now();
    step->actions = node::apply(state_, event, step->decided_at);
    if (step->actions.empty())
        return;
    for (const node::Action& action : step->actions)
        actor_.announce(action);
    std::vector<StoreWrite> batch;
    bool intent = false;
    bool outward = false;
    bool ends = ends_with_the_machine(event);
    bool on_disk = false;
    for (const node::Action& action : step->actions) {
        log::debug("action: {}", node::describe(action));
        if (auto row = actor_.record_of(action))
            batch.push_back(std::move(*row));
        intent = intent || is_intent(action);
        outward = outward || reaches_out(action);
        ends = ends || ends_with_the_machine(action);
        on_disk = on_disk || wants_disk(action);
    }
    const bool waits = intent || (outward && !batch.empty());
    step->ready = !waits;
    Step* waiting = waits ? step.get() : nullptr;
    steps_.push_back(std::move(step));
    fault_point("loop.decided");
    if (batch.empty())
        return;
    // The completion runs on the store's thread: back to this one before anything is touched.
    store_.post(std::move(batch),
                intent && on_disk && !ends ? Durability::kIntent : Durability::kRecord,
                [this, waiting, alive = std::weak_ptr(alive_), &context = context_](Status status) {
                    boost::asio::post(context, [this, waiting, alive, status]() {
                        if (!alive.expired())
                            written(waiting, status);
                    });
                });
}

void DecisionLoop::written(Step* step, Status status) {
    if (!status && (!refused_ || refused_->message != status.error().message))
        log::error("{}; going on, since what is alive is found again without it",
                   status.error().message);
    refused_ = status ? std::optional<Error>() : status.error();
    if (step != nullptr) {
        step->recorded = std::move(status);
        step->ready = true;
        run();
    }
}

// A deadline counts from when what it limits begins, however long its record took.
void DecisionLoop::carry_out(Step& step) {
    const auto waited = Clock::now() - step.decided_at;
    for (node::Action& action : step.actions) {
        if (auto* timer = std::get_if<node::ArmTimer>(&action))
            timer->at += waited;
        const bool outward = reaches_out(action);
        if (outward)
            fault_point([&] { return "before " + kind_of(action); });
        actor_.carry_out(action, step.recorded);
        if (outward)
            fault_point([&] { return "after " + kind_of(action); });
    }
}

void DecisionLoop::record(StoreWrite row) {
    store_.post({std::move(row)}, Durability::kRecord, {});
}

void DecisionLoop::store_changed(const StoreReport& report) {
    const bool ends = trouble_ && !report.trouble;
    if (!trouble_ && report.trouble)
        trouble_since_ = Clock::now();
    trouble_ = report.trouble;
    if (on_store_)
        on_store_(report);
    if (ends)
        go_on();
}

// The clock has stood still since the trouble began, which was before it was told: what was to come
// is as far away as it was.
void DecisionLoop::go_on() {
    const node::TimePoint now = Clock::now();
    const node::TimePoint since =
        steps_.empty() ? trouble_since_ : std::min(trouble_since_, steps_.front()->decided_at);
    const auto stood = now - since;
    for (auto& [name, instance] : state_.instances)
        if (instance.deadline > since)
            instance.deadline += stood;
    for (const auto& [timer, at] : std::exchange(fired_, {}))
        actor_.carry_out(node::ArmTimer{timer, at + stood}, {});
    std::deque<node::Event> held = held_.take();
    events_.insert(events_.begin(), std::make_move_iterator(held.begin()),
                   std::make_move_iterator(held.end()));
    run();
}

} // namespace berth
