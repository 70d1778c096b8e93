// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/round.h"
#include "cache/load/uring.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace berth {

// What direct reads are aligned to, on disk and in memory. Some disks ask for less; one that asks
// for more refuses the read, and then its pages go through the page cache.
inline constexpr uint64_t kDirectAlignment = 4096;
// A queued read is cut into pieces of this size, which the disk works on at once.
inline constexpr uint64_t kDirectPieceBytes = uint64_t{1} << 20;

inline uint64_t align_down(uint64_t value) {
    return value & ~(kDirectAlignment - 1);
}

// Both read from an aligned offset to aligned memory of aligned length, and return how many bytes
// from the start on are right: fewer than asked for at the end of the file, and where the kernel
// went on with less. Both come back only when the kernel has stopped writing to `to`. Errors have
// errno as their source.
Result<uint64_t> read_direct(int fd, uint64_t offset, std::span<std::byte> to);
Result<uint64_t> read_direct(Uring& ring, int fd, uint64_t offset, std::span<std::byte> to);

// Whether a direct read's error says that this file takes no direct reads (of this alignment).
bool is_direct_refused(int error_number);

} // namespace berth
