// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/health.h"

#include "engine_shim/reference/serve/event_queue.h"

#include <fmt/format.h>

namespace berth::serve {

boost::asio::awaitable<Health> HealthCheck::check() {
    auto now = std::chrono::steady_clock::now();
    engine::EngineStats stats = engine_.stats();
    bool has_moved = stats.steps != steps_seen_;
    if (has_moved) {
        // When it moved is known only to lie between the two looks.
        bool is_first_look = moved_ == std::chrono::steady_clock::time_point();
        steps_seen_ = stats.steps;
        if (!is_first_look)
            moved_ = now;
    }
    Health health;
    if (!stats.held.empty()) {
        health.is_good = true;
        health.status = "held";
        health.why = stats.held;
        co_return health;
    }
    if (now - moved_ < kFresh && moved_ != std::chrono::steady_clock::time_point()) {
        health.is_good = true;
        health.status = "ok";
        co_return health;
    }
    if (is_probing_) {
        health.status = stats.ready ? "failing" : "starting";
        health.why = "another health check waits for the engine's answer";
        co_return health;
    }
    is_probing_ = true;
    health = co_await probe();
    is_probing_ = false;
    co_return health;
}

boost::asio::awaitable<Health> HealthCheck::probe() {
    auto queue = std::make_shared<EventQueue>(context_);
    engine::GenerationRequest request;
    request.id = fmt::format("health-{}", probes_++);
    request.prompt = {engine_.eos_tokens().empty() ? 0 : engine_.eos_tokens()[0]};
    request.max_new_tokens = 1;
    request.temperature = 0;
    std::string id = request.id;
    uint64_t steps_before = engine_.stats().steps;
    Health health;
    health.status = engine_.stats().ready ? "failing" : "starting";
    Status submitted = engine_.submit(std::move(request), queue->callback());
    if (!submitted) {
        health.why = submitted.error().message;
        co_return health;
    }
    auto deadline = std::chrono::steady_clock::now() + kProbeDeadline;
    for (;;) {
        std::optional<engine::TokenEvent> event = co_await queue->next(deadline);
        if (!event) {
            engine_.cancel(id);
            // A long queue: the token waits its turn while others are served.
            if (engine_.stats().steps != steps_before) {
                moved_ = std::chrono::steady_clock::now();
                health.is_good = true;
                health.status = "ok";
                co_return health;
            }
            std::string last = engine_.stats().last_error;
            health.why = fmt::format("the engine made no step within {} s{}{}",
                                     kProbeDeadline.count(), last.empty() ? "" : ": ", last);
            co_return health;
        }
        if (event->finish_reason == engine::FinishReason::kError) {
            health.why = event->error ? event->error->message : "the engine's step failed";
            co_return health;
        }
        if (event->finished) {
            moved_ = std::chrono::steady_clock::now();
            steps_seen_ = engine_.stats().steps;
            health.is_good = true;
            health.status = "ok";
            co_return health;
        }
    }
}

} // namespace berth::serve
