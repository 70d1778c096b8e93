// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "cache/load/disk_gate.h"
#include "cache/load/page_cache.h"
#include "cache/load/uring.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// How bytes that the page cache lacks come off the disk.
//   io_uring  direct reads, several of each range queued at once
//   pread     direct reads, one call for each range
//   buffered  through the page cache, from which they are dropped again
// kAuto is the first of them that works here, file by file.
enum class ReadMethod { kAuto, kUring, kPread, kBuffered };
std::string_view to_string(ReadMethod method); // "auto", "io_uring", "pread", "buffered"
Result<ReadMethod> read_method_from(std::string_view name);

struct ReaderOptions {
    ReadMethod method = ReadMethod::kAuto; // one that is named and does not work is an error
};

// What a load's reading came to; text() is its line in the log.
struct ReadReport {
    std::string method;
    std::string reason; // why this one
    uint64_t cached_bytes = 0;
    uint64_t disk_bytes = 0;
    int streams = 0;                  // reads of the disk at once, as measured best
    double disk_bytes_per_second = 0; // with them; 0: too little was read to tell
    std::string text() const;
};

// A file as a FileReader wants it: a plain descriptor, and one for direct reads where there may be
// such.
class ReadableFile {
  public:
    ReadableFile(std::string name, UniqueFd plain);
    const std::string& name() const { return name_; }
    int fd() const { return plain_.get(); }
    // A memfd, or on a tmpfs: there is no disk behind it.
    bool is_in_memory() const { return is_in_memory_; }
    // Plain reads through the page cache; how many bytes they brought, fewer at the file's end.
    Result<uint64_t> read_plain(uint64_t offset, std::span<std::byte> to) const;

    // The fault ShortRead: `found` of `expected` bytes at `offset`, and no more.
    tl::unexpected<Error> fail_short(uint64_t offset, uint64_t found, uint64_t expected) const;

  private:
    friend class FileReader;
    std::string name_;
    UniqueFd plain_;
    UniqueFd direct_;
    bool is_in_memory_ = false;
    std::atomic<bool> takes_direct_{false};
};

// Reads ranges of files: what is in the page cache from there, by as many threads as call; the rest
// from the disk, by as few threads at once as that is fastest with. Leaves the page cache as it
// was: direct reads bypass it, and what a buffered read brought in is dropped. Thread-safe; read()
// blocks on the disk and on its turn there.
class FileReader {
  public:
    // Decides on the method; fails only for one that was asked for by name and does not work.
    static Result<std::unique_ptr<FileReader>> create(ReaderOptions options);
    // Opens the file for direct reads, if the method has any; fails as create() does.
    Status prepare(ReadableFile& file);

    // Fills `to` with the file's bytes from `offset` on, or fails; a file that ends before is the
    // fault ShortRead. The address of `to` has the
    // offset's remainder by kDirectAlignment, and all of the pages that `to` touches may be
    // written: a direct read fills whole ones.
    Status read(ReadableFile& file, uint64_t offset, std::span<std::byte> to);
    ReadReport report() const;

  private:
    explicit FileReader(ReadMethod asked) : asked_(asked), method_(asked) {}

    // Each returns how many bytes from the start on it brought, fewer at the file's end.
    Result<uint64_t> read_some(ReadableFile& file, uint64_t offset, std::span<std::byte> to);
    Result<uint64_t> read_run(ReadableFile& file, uint64_t offset, std::span<std::byte> to,
                              Cached cached);
    Result<uint64_t> read_disk(ReadableFile& file, uint64_t offset, std::span<std::byte> to,
                               bool keep);
    Result<uint64_t> read_aligned(ReadableFile& file, uint64_t offset, std::span<std::byte> to);
    Result<uint64_t> read_buffered(ReadableFile& file, uint64_t offset, std::span<std::byte> to,
                                   bool keep);
    Status refuse_direct(ReadableFile& file, const Error& error);
    // Nothing where rings are not used (any more).
    Result<std::unique_ptr<Uring>> take_ring();
    void give_ring_back(std::unique_ptr<Uring> ring);

    const ReadMethod asked_;
    DiskGate gate_;
    std::atomic<uint64_t> cached_bytes_{0};
    std::atomic<uint64_t> uring_bytes_{0};
    std::atomic<uint64_t> pread_bytes_{0};
    std::atomic<uint64_t> buffered_bytes_{0};
    mutable std::mutex mutex_; // guards all below
    ReadMethod method_;        // what is used where a file allows it; never kAuto
    std::string reason_;
    std::vector<std::unique_ptr<Uring>> idle_rings_;
};

} // namespace berth
