// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/signal.h"
#include "scheduler/act/worker_pool.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <memory>
#include <optional>

namespace berth {

// Waits for a signal or the waiter's deadline. Cancellation of the coroutine ends it too.
inline boost::asio::awaitable<void> wait_on(Signal::Waiter waiter) {
    (void)co_await waiter->async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
}

template <typename Work>
using ResultOf = decltype(std::declval<Work>()());

// For run_on().
template <typename Work>
boost::asio::awaitable<ResultOf<Work>> running_on(boost::asio::io_context* context,
                                                  WorkerPool* workers, Work work) {
    using Value = ResultOf<Work>;
    auto result = std::make_shared<std::optional<Value>>();
    auto done = std::make_shared<boost::asio::steady_timer>(
        *context, std::chrono::steady_clock::time_point::max());
    workers->run(std::move(work), [result, done](Value value) {
        result->emplace(std::move(value));
        done->cancel();
    });
    (void)co_await done->async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    if (!*result)
        throw boost::system::system_error(boost::asio::error::operation_aborted);
    co_return std::move(**result);
}

// Runs `work` on a worker and waits for its result. `work` is copied into the coroutine; the other
// two outlive it.
template <typename Work>
boost::asio::awaitable<ResultOf<Work>> run_on(boost::asio::io_context& context, WorkerPool& workers,
                                              Work work) {
    return running_on(&context, &workers, std::move(work));
}

} // namespace berth
