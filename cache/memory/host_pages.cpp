// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/host_pages.h"

#include "base/round.h"
#include "base/units.h"
#include "cache/memory/numa.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

namespace berth {

namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr uint64_t kSmallPageBytes = 4096;
// What is worth a thread to touch, and how many such there are at most.
constexpr uint64_t kTouchBytes = uint64_t{16} << 20;
constexpr uint64_t kTouchThreadsMax = 8;

uint64_t rounded(uint64_t bytes, uint64_t step) {
    return round_up(bytes, step);
}

// Every page there and writable, or errno. Where a page cannot be had, this tells; writing to it
// would end the process.
int touch_pages(std::byte* at, uint64_t bytes, bool reserved) {
    while (::madvise(at, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        // Kernels before 5.14 do not know it; small pages may be touched by hand.
        if (errno != EINVAL || reserved)
            return errno;
        for (uint64_t offset = 0; offset < bytes; offset += kSmallPageBytes)
            *static_cast<volatile std::byte*>(at + offset) = std::byte{0};
        return 0;
    }
    return 0;
}

} // namespace

HostPages::~HostPages() {
    if (data_ != nullptr)
        ::munmap(data_, mapped_bytes_);
}

Result<HostPages> HostPages::map(uint64_t bytes, bool reserved) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (reserved ? MAP_HUGETLB | MAP_HUGE_2MB : 0);
    bool huge = bytes >= kHugePageBytes;
    HostPages pages;
    pages.bytes_ = bytes;
    pages.mapped_bytes_ = rounded(bytes, huge ? kHugePageBytes : kSmallPageBytes);
    pages.reserved_ = reserved;
    // One huge page more, so that the start can be moved to where a huge page begins.
    uint64_t slack = huge && !reserved ? kHugePageBytes : 0;
    void* at = ::mmap(nullptr, pages.mapped_bytes_ + slack, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) {
        int error_number = errno;
        auto error =
            fail_errno(fmt::format("mapping {} of host memory", format_bytes(bytes)), error_number);
        if (error_number == ENOMEM)
            error.value().code = ErrorCode::kResourceExhausted;
        return error;
    }
    auto* data = static_cast<std::byte*>(at);
    if (slack > 0) {
        uint64_t before = rounded(reinterpret_cast<uintptr_t>(at), kHugePageBytes) -
                          reinterpret_cast<uintptr_t>(at);
        if (before > 0)
            ::munmap(data, before);
        data += before;
        if (before < slack)
            ::munmap(data + pages.mapped_bytes_, slack - before);
        ::madvise(data, pages.mapped_bytes_, MADV_HUGEPAGE);
    }
    pages.data_ = data;
    return pages;
}

Status HostPages::touch(int node) {
    uint64_t threads = std::clamp<uint64_t>(mapped_bytes_ / kTouchBytes, 1, kTouchThreadsMax);
    threads = std::min<uint64_t>(threads, std::max(1U, std::thread::hardware_concurrency()));
    uint64_t part = rounded(mapped_bytes_ / threads + 1, kHugePageBytes);
    std::atomic<int> failed{0};
    {
        std::vector<std::jthread> touching;
        for (uint64_t start = 0; start < mapped_bytes_; start += part)
            touching.emplace_back([this, start, part, node, &failed] {
                // Where the memory could not be placed by request, it comes from where this runs.
                (void)prefer_node(node);
                uint64_t bytes = std::min(part, mapped_bytes_ - start);
                if (int error_number = touch_pages(data_ + start, bytes, reserved_))
                    failed = error_number;
            });
    }
    if (failed == 0)
        return {};
    return fail(Error{ErrorCode::kResourceExhausted,
                      fmt::format("host memory of {}: no pages for it ({}); the machine or this "
                                  "control group is out of memory",
                                  format_bytes(bytes_), std::strerror(failed)),
                      {},
                      failed});
}

Result<HostPages> HostPages::create(uint64_t bytes, int node) {
    if (bytes == 0)
        return fail(ErrorCode::kInvalidArgument, "a host buffer of 0 bytes was asked for");
    // Reserved pages first; a machine or a control group that has none to give takes the others.
    for (bool reserved : {true, false}) {
        if (reserved && bytes < kHugePageBytes)
            continue;
        auto pages = map(bytes, reserved);
        if (pages) {
            (void)place_on_node(pages->data_, pages->mapped_bytes_, node);
            if (Status touched = pages->touch(node); touched)
                return pages;
            else if (!reserved)
                return fail(std::move(touched).error());
        } else if (!reserved) {
            return pages;
        }
    }
    return fail(ErrorCode::kInternal, "no kind of pages was tried");
}

} // namespace berth
