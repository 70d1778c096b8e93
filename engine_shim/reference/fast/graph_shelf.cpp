// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/graph_shelf.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace berth::engine::fast {

GraphShelf::GraphShelf() : thread_([this](const std::stop_token& stop) { prepare_all(stop); }) {}

GraphShelf::~GraphShelf() {
    thread_.request_stop();
    thread_.join();
}

uint32_t GraphShelf::rows_for(uint32_t rows, uint32_t rows_max) {
    const uint32_t filled = rows <= 8    ? std::bit_ceil(rows)
                            : rows <= 64 ? (rows + 7) / 8 * 8
                                         : (rows + 31) / 32 * 32;
    return std::clamp(filled, rows, std::max(rows, rows_max));
}

RecordedStep* GraphShelf::find(uint32_t rows) const {
    const auto found = steps_.find(rows);
    return found == steps_.end() ? nullptr : found->second.get();
}

void GraphShelf::keep(std::unique_ptr<RecordedStep> step) {
    RecordedStep* const kept = step.get();
    std::unique_ptr<RecordedStep> before = std::exchange(steps_[kept->rows], std::move(step));
    std::unique_lock lock(mutex_);
    std::erase(waiting_, before.get());
    changed_.wait(lock, [&] { return before == nullptr || preparing_ != before.get(); });
    waiting_.push_back(kept);
    changed_.notify_all();
}

void GraphShelf::settle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.empty() && preparing_ == nullptr; });
}

Status GraphShelf::take_error() {
    const std::lock_guard lock(mutex_);
    return std::exchange(error_, Status());
}

void GraphShelf::prepare_all(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
        preparing_ = waiting_.front();
        waiting_.erase(waiting_.begin());
        lock.unlock();
        Status prepared;
        for (RecordedStep::Piece& piece : preparing_->pieces)
            if (prepared)
                prepared = piece.graph->prepare();
        lock.lock();
        if (prepared)
            preparing_->ready.store(true, std::memory_order_release);
        else if (error_)
            error_ = prepared;
        preparing_->failed.store(!prepared, std::memory_order_release);
        preparing_ = nullptr;
        changed_.notify_all();
    }
}

} // namespace berth::engine::fast
