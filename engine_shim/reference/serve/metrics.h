// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/keeping.h"
#include "engine_shim/reference/serve/engine_api.h"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace berth::serve {

// A histogram over times, in seconds, from a millisecond to a minute.
class TimeHistogram {
  public:
    void add(double seconds);
    // Appends it in Prometheus' text format.
    void write(std::string& to, const std::string& name, const std::string& help) const;

  private:
    static constexpr std::array<double, 15> kBounds = {
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
    std::array<uint64_t, kBounds.size() + 1> counts_{};
    double sum_ = 0;
};

// What the server counts of its requests. On the io thread alone.
struct ServerMetrics {
    std::map<std::pair<std::string, int>, uint64_t> requests; // by route and status
    uint64_t requests_now = 0;
    uint64_t disconnects = 0;
    uint64_t prompt_tokens = 0;
    uint64_t completion_tokens = 0;
    TimeHistogram first_token;  // from the request's begin
    TimeHistogram later_tokens; // between two tokens, the mean of a request
    TimeHistogram whole;

    std::string text(const engine::EngineStats& stats) const;
};

// Of connections that outlive their engine.
std::string kept_text(const http::Keeping::Counts& counts);

} // namespace berth::serve
