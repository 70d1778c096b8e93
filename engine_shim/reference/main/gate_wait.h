// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/client.h"

#include <algorithm>
#include <chrono>

namespace berth::engine {

// What is computed outside of the loop waits at a closed gate as the loop does, but only for a
// while: the deadlines of a start and of a resume go on meanwhile. Engine thread only.
class GateWait {
  public:
    static constexpr Nanoseconds kStart =
        std::chrono::seconds(5); // all of a start's steps together
    static constexpr Nanoseconds kCanary = std::chrono::seconds(2); // a resume's check

    explicit GateWait(Client& client) : client_(client) {}

    // Between layers, with nothing under way on the device.
    void here() {
        if (left_.count() > 0)
            left_ -= std::min(client_.wait_at_gate(left_), left_);
    }
    // Tells what the start has waited, as a part of its other phases.
    template <typename Phase>
    void start_is_over(const Phase& phase) {
        starting_ = false;
        const std::chrono::duration<double, std::milli> waited = kStart - left_;
        if (waited.count() >= 0.1)
            phase("gate", waited.count());
    }
    // At the start a part of what it may wait is gone already.
    void canary_begins() { left_ = starting_ ? left_ : kCanary; }

  private:
    Client& client_;
    bool starting_ = true;
    Nanoseconds left_ = kStart;
};

} // namespace berth::engine
