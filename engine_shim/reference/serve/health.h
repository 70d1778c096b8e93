// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/serve/engine_api.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <chrono>
#include <string>

namespace berth::serve {

struct Health {
    bool is_good = false;
    std::string status; // "ok", "held", "starting", "failing"
    std::string why;
};

// Says whether the engine really works: its step counter has moved within the last seconds, or else
// it generates one token now, within a deadline. An engine that the node holds (paused, offloaded)
// is well, and says so. Lives on the io thread; the engine outlives it.
class HealthCheck {
  public:
    HealthCheck(boost::asio::io_context& context, engine::EngineApi& engine)
        : context_(context), engine_(engine) {}

    boost::asio::awaitable<Health> check();

    static constexpr std::chrono::seconds kFresh{5};
    static constexpr std::chrono::seconds kProbeDeadline{5};

  private:
    boost::asio::awaitable<Health> probe();

    boost::asio::io_context& context_;
    engine::EngineApi& engine_;
    uint64_t steps_seen_ = 0;
    std::chrono::steady_clock::time_point moved_{}; // when steps were last seen to have moved
    bool is_probing_ = false;
    uint64_t probes_ = 0;
};

} // namespace berth::serve
