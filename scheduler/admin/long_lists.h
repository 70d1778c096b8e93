// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/admin/views.h"

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <string>

// The node's lists as JSON text, "[...]", made in slices of kSlice: of a thousand instances nobody
// else waits for all of them to be written. What changes between two slices shows in the later one;
// nothing is left out that is there all the time. On the decision thread; the context outlives the
// coroutines.
namespace berth::long_lists {

inline constexpr std::chrono::microseconds kSlice{500};

boost::asio::awaitable<std::string> instances(const NodeContext* context);
boost::asio::awaitable<std::string> devices(const NodeContext* context, views::DriverBytes driver);
boost::asio::awaitable<std::string> weights(const NodeContext* context);

} // namespace berth::long_lists
