// SPDX-License-Identifier: Apache-2.0
#include "base/http/turnstile.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <deque>
#include <utility>

namespace berth::http {

namespace asio = boost::asio;

struct Turnstile::State : std::enable_shared_from_this<Turnstile::State> {
    struct Waiting {
        std::shared_ptr<asio::steady_timer> timer;
        size_t weight = 1;
    };

    State(asio::io_context& io, size_t max) : context(io), a_turn_max(max), a_turn(max) {}

    void count(size_t weight) {
        passed += weight;
        if (std::exchange(turn_posted, true))
            return;
        turn_began = std::chrono::steady_clock::now();
        // Behind everything that is ready now: that is what makes it the next turn.
        asio::post(context, [self = shared_from_this()] { self->next_turn(); });
    }

    void next_turn() {
        const bool was_long = std::chrono::steady_clock::now() - turn_began > kTurn;
        a_turn = was_long ? std::max<size_t>(a_turn / 2, 1) : std::min(a_turn + 1, a_turn_max);
        turn_posted = false;
        passed = 0;
        while (!waiting.empty() && passed < a_turn) {
            Waiting next = std::move(waiting.front());
            waiting.pop_front();
            next.timer->cancel();
            count(next.weight);
        }
    }

    asio::io_context& context;
    const size_t a_turn_max;
    size_t a_turn; // now
    size_t passed = 0;
    std::chrono::steady_clock::time_point turn_began;
    bool turn_posted = false;
    std::deque<Waiting> waiting;
};

Turnstile::Turnstile(asio::io_context& context, size_t a_turn_max)
    : state_(std::make_shared<State>(context, a_turn_max)) {}

asio::awaitable<void> Turnstile::pass(size_t weight) {
    auto state = state_;
    if (state->waiting.empty() && state->passed < state->a_turn) {
        state->count(weight);
        co_return;
    }
    auto timer =
        std::make_shared<asio::steady_timer>(state->context, asio::steady_timer::time_point::max());
    state->waiting.push_back({timer, weight});
    (void)co_await timer->async_wait(asio::as_tuple(asio::use_awaitable));
}

} // namespace berth::http
