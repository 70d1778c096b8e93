// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

struct io_uring_sqe;
struct io_uring_cqe;

namespace berth {

// One io_uring for reads alone, spoken to through the kernel's three calls: what a library would
// add is not needed for one operation. Used by one thread at a time. The memory of a read that was
// started must live until its completion has been taken: wait() for all of them, on errors too.
class Uring {
  public:
    struct Completion {
        uint64_t tag = 0;
        int result = 0; // bytes, or minus errno
    };

    // kUnsupported, with the reason in words, where the kernel has none, forbids it (seccomp,
    // sysctl), or gives no memory for it (RLIMIT_MEMLOCK on kernels before 5.12).
    static Result<std::unique_ptr<Uring>> create(unsigned depth);
    Uring(const Uring&) = delete;
    Uring& operator=(const Uring&) = delete;
    ~Uring();

    unsigned depth() const { return depth_; }
    unsigned in_flight() const { return in_flight_; }
    // Queues a read; in_flight() is below depth(). Goes to the kernel with the next wait().
    void add_read(int fd, uint64_t offset, std::span<std::byte> to, uint64_t tag);
    // Hands over what was queued and blocks until a completion can be taken. When the kernel takes
    // no more, what was not handed over comes back as completions with that error.
    void wait();
    std::optional<Completion> take();

  private:
    // A mapping of the ring's memory.
    struct Map {
        Map() = default;
        Map(const Map&) = delete;
        Map& operator=(const Map&) = delete;
        ~Map();
        Status map(int fd, uint64_t offset, size_t length);
        template <typename T>
        T* at(uint32_t offset) const {
            return reinterpret_cast<T*>(static_cast<std::byte*>(address) + offset);
        }
        void* address = nullptr;
        size_t bytes = 0;
    };
    Uring() = default;

    UniqueFd fd_;
    Map submissions_;
    Map completions_;
    Map entries_;
    unsigned depth_ = 0;
    unsigned queued_ = 0;    // added, not yet the kernel's
    unsigned in_flight_ = 0; // added and not taken
    uint32_t* submit_tail_ = nullptr;
    uint32_t* submit_array_ = nullptr;
    uint32_t submit_mask_ = 0;
    io_uring_sqe* submit_entries_ = nullptr;
    uint32_t* complete_head_ = nullptr;
    uint32_t* complete_tail_ = nullptr;
    uint32_t complete_mask_ = 0;
    io_uring_cqe* complete_entries_ = nullptr;
    int refused_ = 0; // errno of a submission that the kernel did not take
};

} // namespace berth
