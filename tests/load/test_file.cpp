// SPDX-License-Identifier: Apache-2.0
#include "tests/load/test_file.h"

#include "cache/load/page_cache.h"
#include "cache/load/source_files.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace berth::testing {

namespace {

std::byte byte_at(uint64_t offset) {
    uint64_t mixed = (offset + 1) * 0x9e3779b97f4a7c15U;
    return static_cast<std::byte>(1 + (mixed >> 40) % 255);
}

} // namespace

TestFile::TestFile(Where where, uint64_t bytes) : bytes_(bytes) {
    if (where == Where::kDisk) {
        folder_.emplace();
        path_ = folder_->file("data");
        fd_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    } else {
        fd_.reset(::memfd_create("test-file", MFD_CLOEXEC));
        path_ = "/proc/self/fd/" + std::to_string(fd_.get());
    }
    fill();
}

TestFile::TestFile(const std::string& folder, uint64_t bytes)
    : path_(folder + "/data"), bytes_(bytes),
      fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
    fill();
}

void TestFile::fill() {
    EXPECT_TRUE(fd_) << std::strerror(errno);
    std::vector<std::byte> block(size_t{1} << 20);
    for (uint64_t offset = 0; offset < bytes_; offset += block.size()) {
        size_t count = std::min<uint64_t>(block.size(), bytes_ - offset);
        for (size_t i = 0; i < count; ++i)
            block[i] = byte_at(offset + i);
        EXPECT_EQ(::pwrite(fd_.get(), block.data(), count, static_cast<off_t>(offset)),
                  static_cast<ssize_t>(count));
    }
}

ReadableFile TestFile::readable() const {
    return {"data", UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC))};
}

bool TestFile::drop() const {
    EXPECT_EQ(::fsync(fd_.get()), 0);
    drop_cached(fd_.get(), 0, bytes_);
    return pages_cached(fd_.get(), 0, bytes_) == 0;
}

void TestFile::warm(uint64_t offset, uint64_t bytes) const {
    std::vector<std::byte> block(bytes);
    UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    // Exactly these pages, none ahead.
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
    EXPECT_EQ(::pread(fd.get(), block.data(), bytes, static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes));
}

std::optional<uint64_t> first_wrong(std::span<const std::byte> bytes, uint64_t offset) {
    for (size_t i = 0; i < bytes.size(); ++i)
        if (bytes[i] != byte_at(offset + i))
            return offset + i;
    return std::nullopt;
}

void ReadSlot::Free::operator()(void* at) const {
    std::free(at);
}

ReadSlot::ReadSlot(uint64_t offset, uint64_t bytes) {
    uint64_t room = SourceFiles::slot_bytes(bytes);
    memory_.reset(std::aligned_alloc(4096, room));
    std::memset(memory_.get(), 0, room);
    to_ = {static_cast<std::byte*>(memory_.get()) + offset % 4096, bytes};
}

std::optional<uint64_t> pages_cached(int fd, uint64_t offset, uint64_t bytes) {
    constexpr long kCachestat = 451;
    uint64_t range[2] = {offset, bytes};
    uint64_t counts[5] = {};
    if (::syscall(kCachestat, fd, range, counts, 0U) != 0)
        return std::nullopt;
    return counts[0];
}

} // namespace berth::testing
