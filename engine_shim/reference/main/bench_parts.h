// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/main/bench_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace berth::engine {

struct BenchOptions {
    std::string shape = "qwen3-8b";
    bool fp8 = false;
    std::vector<uint32_t> batches = {1, 8, 32};
    std::vector<uint32_t> contexts = {512, 2048};
    std::vector<std::string> only;
    uint32_t rounds = 30;
};

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begun) {
    return std::chrono::duration<double>(Clock::now() - begun).count();
}

inline double median(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Of all, by nearest rank.
inline double percentile(std::vector<double> times, double share) {
    std::sort(times.begin(), times.end());
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1) + 0.5)];
}

template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::print(format, std::forward<Args>(args)...);
    fmt::print("\n");
    std::fflush(stdout);
}

// The parts of the bench, each of which prints what it measured. One thread; torch and the driver
// throw and wait here.
class Bench {
  public:
    Bench(const BenchOptions& options, BenchModel& model) : options_(options), model_(model) {}

    Status read();
    Status multiply();
    Status products();
    Status chains();
    Status decode();
    Status prefill();
    Status looks();
    Status gate();
    Status check();

  private:
    Result<double> recorded_seconds(const std::function<Status()>& launches);
    Status product_shape(const char* name, bool pair,
                         const std::function<std::vector<fast::Matrix>(uint32_t)>& parts,
                         uint32_t matrices);
    std::vector<StepItem> decode_items(uint32_t batch, uint32_t context);
    Result<double> step_seconds(fast::FastModel& fast, const std::vector<StepItem>& items,
                                uint32_t rounds, double* worst = nullptr);
    Result<double> prefill_seconds(fast::FastModel& fast, uint32_t tokens, uint32_t chunk);
    Status gate_way(const char* name, uint32_t batch, const fast::FastOptions& options,
                    const fast::LookLimits& limits);
    double prefill_flops(uint32_t tokens) const;

    const BenchOptions& options_;
    BenchModel& model_;
    double read_rate_ = 0;   // bytes a second
    double matrix_rate_ = 0; // operations a second
    const int32_t token_ = 7;
    std::vector<std::vector<uint32_t>> blocks_;
    std::vector<int32_t> prompt_;
};

} // namespace berth::engine
