// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/http.h"
#include "scheduler/act/signal.h"
#include "scheduler/act/worker_pool.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>

namespace berth {

// Waits for a signal or the waiter's deadline. Cancellation of the coroutine ends it too.
inline boost::asio::awaitable<void> wait_on(Signal::Waiter waiter) {
    (void)co_await waiter->async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
}

// Waits of one request, one after the other, each of which ends too when nobody waits for the
// answer any more. The peer is told of them once, however many there are: a request may wait for
// days.
class PeerWaits {
  public:
    explicit PeerWaits(http::Peer& peer) {
        peer.on_closed([now = now_] {
            if (*now)
                (*now)->cancel();
        });
    }
    boost::asio::awaitable<void> on(Signal::Waiter waiter) {
        *now_ = waiter;
        co_await wait_on(std::move(waiter));
        now_->reset();
    }

  private:
    std::shared_ptr<Signal::Waiter> now_ = std::make_shared<Signal::Waiter>();
};

template <typename Work>
using ResultOf = decltype(std::declval<Work>()());

// For run_on().
template <typename Value>
struct WorkOutcome {
    std::optional<Value> value;
    std::exception_ptr thrown;
    static WorkOutcome of_failure(const Error& error) {
        return {std::nullopt, std::make_exception_ptr(std::runtime_error(error.message))};
    }
};
template <typename Work>
boost::asio::awaitable<ResultOf<Work>> running_on(boost::asio::io_context* context,
                                                  WorkerPool* workers, Work work) {
    using Outcome = WorkOutcome<ResultOf<Work>>;
    auto outcome = std::make_shared<Outcome>();
    auto done = std::make_shared<boost::asio::steady_timer>(
        *context, std::chrono::steady_clock::time_point::max());
    auto guarded = [work = std::move(work)]() mutable -> Outcome { return {work(), nullptr}; };
    workers->run(std::move(guarded), [outcome, done](Outcome told) {
        *outcome = std::move(told);
        done->cancel();
    });
    (void)co_await done->async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    if (outcome->thrown)
        std::rethrow_exception(outcome->thrown);
    if (!outcome->value)
        throw boost::system::system_error(boost::asio::error::operation_aborted);
    co_return std::move(*outcome->value);
}

// Runs `work` on a worker and waits for its result. `work` is copied into the coroutine; the other
// two outlive it. What it throws is thrown here, by its words.
template <typename Work>
boost::asio::awaitable<ResultOf<Work>> run_on(boost::asio::io_context& context, WorkerPool& workers,
                                              Work work) {
    return running_on(&context, &workers, std::move(work));
}

} // namespace berth
