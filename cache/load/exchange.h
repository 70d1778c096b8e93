// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>

namespace berth {

// What reader threads and the devices' thread share: which tile is next, which slots of the ring
// are free, what was read and waits to be copied, the first error. Thread-safe; a slot's bytes
// belong to whoever has the slot. Every call returns soon but take() with a slot and
// wait_for_readers().
class Exchange {
  public:
    struct Work {
        size_t tile = 0;
        int slot = 0;
        std::span<const std::byte> bytes; // after the read
    };

    Exchange(size_t tile_count, int readers, int slots);

    // A reader's next piece of work, with a slot if `with_slot`; nothing: end.
    std::optional<Work> take(bool with_slot);
    void finish_read(const Work& work, uint64_t bytes, bool with_slot);
    void give_slot_back(int slot);
    std::optional<Work> take_ready();
    // Until something is ready, no reader is left, an error came, or `time` has passed.
    void wait_for_readers(std::chrono::milliseconds time);
    void reader_ended();
    void fail_with(const Error& error); // the first one counts
    // Nothing more comes: all was read and taken, or an error ended it.
    bool ended();
    uint64_t bytes_done();
    Status status();

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    const size_t tile_count_;
    size_t next_ = 0;
    int readers_;
    std::deque<int> free_;
    std::deque<Work> ready_;
    uint64_t bytes_done_ = 0;
    std::optional<Error> error_;
};

} // namespace berth
