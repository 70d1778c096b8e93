// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace berth {

// Memory of this process that is there for good: on a NUMA node before it is first touched, in huge
// pages where the machine has some reserved (else where the kernel makes them), and touched by
// several threads at once, so that who uses it next pays for no page. Starts at a page. Move-only;
// empty is legal; unmaps when it goes.
class HostPages {
  public:
    HostPages() = default;
    // `node` as in numa.h; a node that gives no memory is advice not taken. ResourceExhausted where
    // there is no memory.
    static Result<HostPages> create(uint64_t bytes, int node);
    HostPages(HostPages&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)),
          mapped_bytes_(std::exchange(other.mapped_bytes_, 0)), reserved_(other.reserved_) {}
    HostPages& operator=(HostPages&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(mapped_bytes_, other.mapped_bytes_);
        std::swap(reserved_, other.reserved_);
        return *this;
    }
    ~HostPages();

    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; } // as asked for
    // Whether these are huge pages that were reserved beforehand.
    bool from_reserved() const { return reserved_; }

  private:
    static Result<HostPages> map(uint64_t bytes, bool reserved);
    Status touch(int node);

    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;
    uint64_t mapped_bytes_ = 0;
    bool reserved_ = false;
};

} // namespace berth
