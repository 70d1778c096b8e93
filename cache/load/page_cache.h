// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <span>

// What the kernel's page cache holds of a file, without making it hold more: a read that only looks
// whether it would wait starts the disk on newer kernels, so the kernel is asked first.
namespace berth {

enum class Cached { kNone, kSome, kAll };

// Asks cachestat(2) (Linux 6.5; for files that the caller owns or may write), else tries one byte
// of the first, the middle and the last page, which may bring in those.
Cached cached_state(int fd, uint64_t offset, uint64_t bytes);

// Reads what is in the cache from the start of `to` on, without waiting for a disk where the file
// system can tell; returns how many bytes that were. An error is not reported here: whoever reads
// the rest meets it.
uint64_t read_cached(int fd, uint64_t offset, std::span<std::byte> to);

// Starts reading a range into the cache, deeper than one plain read does.
void read_ahead(int fd, uint64_t offset, uint64_t bytes);
// Drops the pages that a range touches.
void drop_cached(int fd, uint64_t offset, uint64_t bytes);

} // namespace berth
