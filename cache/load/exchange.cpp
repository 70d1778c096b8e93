// SPDX-License-Identifier: Apache-2.0
#include "cache/load/exchange.h"

namespace berth {

Exchange::Exchange(size_t tile_count, int readers, int slots)
    : tile_count_(tile_count), readers_(readers) {
    for (int slot = 0; slot < slots; ++slot)
        free_.push_back(slot);
}

std::optional<Exchange::Work> Exchange::take(bool with_slot) {
    std::unique_lock lock(mutex_);
    if (with_slot)
        changed_.wait(lock, [&] { return error_ || next_ == tile_count_ || !free_.empty(); });
    if (error_ || next_ == tile_count_)
        return std::nullopt;
    Work work{next_++, 0, {}};
    if (with_slot) {
        // The slot used last: its bytes are still in the processor's cache.
        work.slot = free_.back();
        free_.pop_back();
    }
    return work;
}

void Exchange::finish_read(const Work& work, uint64_t bytes, bool with_slot) {
    std::lock_guard lock(mutex_);
    bytes_done_ += bytes;
    if (with_slot)
        ready_.push_back(work);
    changed_.notify_all();
}

void Exchange::give_slot_back(int slot) {
    std::lock_guard lock(mutex_);
    free_.push_back(slot);
    changed_.notify_all();
}

std::optional<Exchange::Work> Exchange::take_ready() {
    std::lock_guard lock(mutex_);
    if (ready_.empty() || error_)
        return std::nullopt;
    Work work = ready_.front();
    ready_.pop_front();
    return work;
}

void Exchange::wait_for_readers(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [&] { return error_ || readers_ == 0 || !ready_.empty(); });
}

void Exchange::reader_ended() {
    std::lock_guard lock(mutex_);
    --readers_;
    changed_.notify_all();
}

void Exchange::fail_with(const Error& error) {
    std::lock_guard lock(mutex_);
    if (!error_)
        error_ = error;
    changed_.notify_all();
}

bool Exchange::ended() {
    std::lock_guard lock(mutex_);
    return error_ || (readers_ == 0 && ready_.empty());
}

uint64_t Exchange::bytes_done() {
    std::lock_guard lock(mutex_);
    return bytes_done_;
}

Status Exchange::status() {
    std::lock_guard lock(mutex_);
    if (error_)
        return fail(*error_);
    return {};
}

} // namespace berth
