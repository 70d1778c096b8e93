// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace berth {

// A Prometheus histogram of seconds, from 50 µs to 100 s.
class Histogram {
  public:
    static constexpr std::array<double, 15> kBounds = {
        5e-5, 1e-4, 3e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30, 100};
    void observe(double seconds) {
        for (size_t i = 0; i < kBounds.size(); ++i)
            if (seconds <= kBounds[i])
                ++buckets_[i];
        ++count_;
        sum_ += seconds;
    }
    uint64_t bucket(size_t i) const { return buckets_[i]; } // cumulative
    uint64_t count() const { return count_; }
    double sum() const { return sum_; }

  private:
    std::array<uint64_t, kBounds.size()> buckets_{};
    uint64_t count_ = 0;
    double sum_ = 0;
};

// What /metrics counts beside the node's state. Thread rule: the decision thread.
struct NodeMetrics {
    Histogram attach_seconds;                                           // request to reply
    std::map<std::string, Histogram> preempt_seconds;                   // by mode
    std::map<std::pair<std::string, std::string>, uint64_t> operations; // by kind and state
    std::map<std::string, uint64_t> private_loads; // by the reason why they are not shared
    std::map<std::string, uint64_t> canaries;      // "met", "mismatch"
    std::map<std::string, uint64_t> weight_loads;  // by where their bytes came from
    uint64_t sets_published = 0;
    Histogram loop_lag;          // how long what is ready waits for the decision thread
    double loop_lag_max = 0;     // since the start
    double recovery_seconds = 0; // from the start of main to ready
};

} // namespace berth
