// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/serve/engine_api.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace berth::serve {

// Token events on their way from the engine's thread to one thread that waits for them. Every call
// is thread-safe. Callbacks keep it alive.
class EventInbox : public std::enable_shared_from_this<EventInbox> {
  public:
    engine::TokenCallback callback() {
        return [self = shared_from_this()](const engine::TokenEvent& event) {
            std::lock_guard lock(self->mutex_);
            self->events_.push_back(event);
            self->changed_.notify_one();
        };
    }

    // All that are there; waits for the first until `deadline` or until stop().
    std::vector<engine::TokenEvent> take(std::chrono::steady_clock::time_point deadline) {
        std::unique_lock lock(mutex_);
        changed_.wait_until(lock, deadline, [this] { return !events_.empty() || stopped_; });
        return std::exchange(events_, {});
    }

    void stop() {
        std::lock_guard lock(mutex_);
        stopped_ = true;
        changed_.notify_all();
    }
    bool stopped() const {
        std::lock_guard lock(mutex_);
        return stopped_;
    }

  private:
    mutable std::mutex mutex_; // guards all below
    std::condition_variable changed_;
    std::vector<engine::TokenEvent> events_;
    bool stopped_ = false;
};

} // namespace berth::serve
