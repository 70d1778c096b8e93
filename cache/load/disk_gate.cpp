// SPDX-License-Identifier: Apache-2.0
#include "cache/load/disk_gate.h"

namespace berth {

namespace {

// What one measurement takes at least, so that it says more than noise.
constexpr uint64_t kWindowBytes = uint64_t{64} << 20;
constexpr double kWindowSeconds = 0.05;

} // namespace

DiskGate::Turn DiskGate::enter() {
    std::unique_lock lock(mutex_);
    if (active_ >= tuner_.streams()) {
        waited_ = true;
        changed_.wait(lock, [&] { return active_ < tuner_.streams(); });
    }
    if (active_++ == 0)
        busy_since_ = now_();
    return Turn(*this);
}

int DiskGate::streams() const {
    std::lock_guard lock(mutex_);
    return tuner_.best();
}

double DiskGate::bytes_per_second() const {
    std::lock_guard lock(mutex_);
    return tuner_.best_rate();
}

double DiskGate::busy_seconds() const {
    return window_seconds_ + std::chrono::duration<double>(now_() - busy_since_).count();
}

void DiskGate::leave(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (unsettled_ > 0) {
        if (--unsettled_ == 0)
            close_window();
    } else {
        window_bytes_ += bytes;
    }
    if (window_bytes_ >= kWindowBytes && busy_seconds() >= kWindowSeconds) {
        int before = tuner_.streams();
        tuner_.measured(static_cast<double>(window_bytes_) / busy_seconds(), waited_);
        close_window();
        // Those that are at it count for neither the old number nor the new.
        if (tuner_.streams() != before)
            unsettled_ = active_ - 1 + tuner_.streams();
    }
    if (--active_ == 0)
        window_seconds_ = busy_seconds();
    changed_.notify_all();
}

void DiskGate::close_window() {
    window_bytes_ = 0;
    window_seconds_ = 0;
    busy_since_ = now_();
    waited_ = false;
}

} // namespace berth
