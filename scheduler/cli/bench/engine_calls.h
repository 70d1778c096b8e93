// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "scheduler/cli/bench/colocate/answer.h"
#include "scheduler/cli/bench/colocate/http_wire.h"

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

// What benches of a running node ask its engines over HTTP. Each call has a connection and an event
// loop of its own, and blocks.
namespace berth::cli::bench {

// The reply's body, read as JSON; Unavailable where its status is not 200.
Result<json::value> ask_engine(const std::string& endpoint, std::string_view method,
                               std::string_view target, const json::object& body);

// As the instance's own server calls it. Empty where the instance serves nobody.
Result<std::string> served_model(const json::object& instance);

// One streamed answer; its times are seconds since `began`. An answer that is not whole says why in
// `error`. `on_progress` is called whenever more of it has been read.
Answer stream_answer(const Endpoint& to, std::string request,
                     std::chrono::steady_clock::time_point began, std::chrono::seconds limit,
                     const std::function<void(const Answer&)>& on_progress);

} // namespace berth::cli::bench
