// SPDX-License-Identifier: Apache-2.0
#include "cache/load/page_cache.h"

#include "cache/load/direct_read.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

namespace berth {

namespace {

constexpr uint64_t kReadBytesMax = uint64_t{1} << 30;
// What the kernel starts for one request in any case, with the smallest usual read-ahead setting.
constexpr uint64_t kReadAheadBytes = uint64_t{128} << 10;

// The kernel's interface, younger than many C libraries' headers; the number is the same on all
// architectures.
constexpr long kCachestatCall = 451;
struct CachestatRange {
    uint64_t offset;
    uint64_t bytes;
};
struct CachestatCounts {
    uint64_t cached;
    uint64_t dirty;
    uint64_t writeback;
    uint64_t evicted;
    uint64_t recently_evicted;
};

std::optional<uint64_t> cached_pages(int fd, uint64_t offset, uint64_t bytes) {
    CachestatRange range{offset, bytes};
    CachestatCounts counts{};
    if (::syscall(kCachestatCall, fd, &range, &counts, 0U) != 0)
        return std::nullopt;
    return counts.cached;
}

ssize_t read_without_waiting(int fd, uint64_t offset, std::span<std::byte> to) {
    iovec part{to.data(), std::min<size_t>(to.size(), kReadBytesMax)};
    ssize_t got = 0;
    do {
        got = ::preadv2(fd, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT);
    } while (got < 0 && errno == EINTR);
    return got;
}

} // namespace

Cached cached_state(int fd, uint64_t offset, uint64_t bytes) {
    if (bytes == 0)
        return Cached::kAll;
    static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    uint64_t first = offset / page_bytes;
    uint64_t last = (offset + bytes - 1) / page_bytes;
    uint64_t pages = last - first + 1;
    if (auto cached = cached_pages(fd, first * page_bytes, pages * page_bytes)) {
        if (*cached == 0)
            return Cached::kNone;
        return *cached >= pages ? Cached::kAll : Cached::kSome;
    }
    int found = 0;
    for (uint64_t at : {offset, offset + bytes / 2, offset + bytes - 1}) {
        std::byte byte{};
        found += read_without_waiting(fd, at, {&byte, 1}) == 1 ? 1 : 0;
    }
    if (found == 0)
        return Cached::kNone;
    return found == 3 ? Cached::kAll : Cached::kSome;
}

uint64_t read_cached(int fd, uint64_t offset, std::span<std::byte> to) {
    uint64_t done = 0;
    while (done < to.size()) {
        ssize_t got = read_without_waiting(fd, offset + done, to.subspan(done));
        if (got < 0 && errno == EOPNOTSUPP)
            // File systems in memory, and some over the network, cannot tell; the cache was asked.
            got = ::pread(fd, to.data() + done, std::min(to.size() - done, kReadBytesMax),
                          static_cast<off_t>(offset + done));
        if (got <= 0)
            break;
        done += static_cast<uint64_t>(got);
    }
    return done;
}

void read_ahead(int fd, uint64_t offset, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += kReadAheadBytes)
        (void)::posix_fadvise(fd, static_cast<off_t>(offset + at),
                              static_cast<off_t>(std::min(kReadAheadBytes, bytes - at)),
                              POSIX_FADV_WILLNEED);
}

void drop_cached(int fd, uint64_t offset, uint64_t bytes) {
    uint64_t start = align_down(offset);
    (void)::posix_fadvise(fd, static_cast<off_t>(start),
                          static_cast<off_t>(round_up(offset + bytes, kDirectAlignment) - start),
                          POSIX_FADV_DONTNEED);
}

} // namespace berth
