// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/event_queue.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace berth::serve {

engine::TokenCallback EventQueue::callback() {
    return [self = shared_from_this()](const engine::TokenEvent& event) {
        boost::asio::post(self->context_, [self, event]() mutable {
            self->events_.push_back(std::move(event));
            self->wake_.cancel();
        });
    };
}

void EventQueue::close() {
    closed_ = true;
    wake_.cancel();
}

boost::asio::awaitable<std::optional<engine::TokenEvent>>
EventQueue::next(std::chrono::steady_clock::time_point deadline) {
    while (!has_next()) {
        if (std::chrono::steady_clock::now() >= deadline)
            co_return std::nullopt;
        wake_.expires_at(deadline);
        co_await wake_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
        auto cancelled = co_await boost::asio::this_coro::cancellation_state;
        if (cancelled.cancelled() != boost::asio::cancellation_type::none)
            closed_ = true;
    }
    if (closed_)
        co_return std::nullopt;
    engine::TokenEvent event = std::move(events_.front());
    events_.pop_front();
    co_return event;
}

} // namespace berth::serve
