// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "cache/load/file_reader.h"
#include "tests/weights/test_checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Files with bytes that tell where they belong, and memory to read them into.
namespace berth::testing {

// A file on disk or, as a memfd, in memory. Its bytes depend on their offset and are never zero, so
// that neither a misplaced byte nor a page that nobody filled goes unseen.
class TestFile {
  public:
    enum class Where { kDisk, kMemory };
    TestFile(Where where, uint64_t bytes);
    // In a folder that outlives it.
    TestFile(const std::string& folder, uint64_t bytes);

    const std::string& path() const { return path_; }
    int fd() const { return fd_.get(); }
    uint64_t bytes() const { return bytes_; }
    ReadableFile readable() const;
    // Takes the file out of the page cache; false where that cannot be done or told.
    bool drop() const;
    // Brings a range into it.
    void warm(uint64_t offset, uint64_t bytes) const;

  private:
    void fill();

    std::optional<TempFolder> folder_;
    std::string path_;
    uint64_t bytes_;
    UniqueFd fd_;
};

// The first of `bytes` that are not the file's from `offset` on; nothing when all are.
std::optional<uint64_t> first_wrong(std::span<const std::byte> bytes, uint64_t offset);

// Memory as a FileReader wants it: whole pages, and room for direct reads around the bytes. What
// has not been read is 0.
class ReadSlot {
  public:
    ReadSlot(uint64_t offset, uint64_t bytes);
    std::span<std::byte> to() const { return to_; }

  private:
    struct Free {
        void operator()(void* at) const;
    };
    std::unique_ptr<void, Free> memory_;
    std::span<std::byte> to_;
};

// How many of a file's pages are in the page cache; nothing where the kernel does not tell.
std::optional<uint64_t> pages_cached(int fd, uint64_t offset, uint64_t bytes);

} // namespace berth::testing
