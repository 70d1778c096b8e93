// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/decision_loop.h"

#include "base/log.h"

#include <boost/asio/post.hpp>

namespace berth {

namespace {

bool is_intent(const node::Action& action) {
    return std::holds_alternative<node::PersistInstance>(action) ||
           std::holds_alternative<node::PersistOperation>(action) ||
           std::holds_alternative<node::PersistWeights>(action) ||
           std::holds_alternative<node::ForgetInstance>(action) ||
           std::holds_alternative<node::KeepWeights>(action);
}

} // namespace

DecisionLoop::DecisionLoop(boost::asio::io_context& context, Store& store, Actor& actor)
    : context_(context), store_(store), actor_(actor) {}

void DecisionLoop::post(node::Event event) {
    events_.push_back(std::move(event));
    run();
}

void DecisionLoop::run() {
    if (running_)
        return;
    running_ = true;
    for (;;) {
        if (!events_.empty()) {
            node::Event event = std::move(events_.front());
            events_.pop_front();
            decide(event);
        } else if (!steps_.empty() && steps_.front()->ready) {
            std::unique_ptr<Step> step = std::move(steps_.front());
            steps_.pop_front();
            carry_out(*step);
        } else {
            break;
        }
    }
    running_ = false;
}

void DecisionLoop::decide(const node::Event& event) {
    auto step = std::make_unique<Step>();
    step->actions = node::apply(state_, event, std::chrono::steady_clock::now());
    if (step->actions.empty())
        return;
    for (const node::Action& action : step->actions)
        actor_.announce(action);
    std::vector<StoreWrite> batch;
    bool intent = false;
    for (const node::Action& action : step->actions) {
        log::debug("action: {}", node::describe(action));
        if (auto row = actor_.record_of(action))
            batch.push_back(std::move(*row));
        intent = intent || is_intent(action);
    }
    step->ready = !intent;
    Step* waiting = intent ? step.get() : nullptr;
    steps_.push_back(std::move(step));
    if (batch.empty())
        return;
    // The completion runs on the store's thread: back to this one before anything is touched.
    store_.post(std::move(batch), intent ? Durability::kIntent : Durability::kRecord,
                [this, waiting, alive = std::weak_ptr(alive_), &context = context_](Status status) {
                    boost::asio::post(context, [this, waiting, alive, status]() {
                        if (!alive.expired())
                            written(waiting, status);
                    });
                });
}

void DecisionLoop::written(Step* step, Status status) {
    if (!status && (!store_error_ || store_error_->message != status.error().message))
        log::error("{}; going on, since what is alive is found again without it",
                   status.error().message);
    store_error_ = status ? std::optional<Error>() : status.error();
    if (step != nullptr) {
        step->recorded = std::move(status);
        step->ready = true;
        run();
    }
}

void DecisionLoop::carry_out(Step& step) {
    for (const node::Action& action : step.actions)
        actor_.carry_out(action, step.recorded);
}

void DecisionLoop::record(StoreWrite row) {
    store_.post({std::move(row)}, Durability::kRecord, {});
}

} // namespace berth
