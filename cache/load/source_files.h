// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/checkpoint.h"
#include "cache/load/file_reader.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace berth {

// A checkpoint's files while they are read: large reads, never a mapping, so that a disk that fails
// gives an error code and not a signal. Remembers what each file was when it was validated; a file
// that is another one by now is refused, before and after. The reads are thread-safe; they block.
class SourceFiles {
  public:
    // FailedPrecondition, with the reason FileChanged, when a file changed since `checkpoint` was
    // opened.
    static Result<SourceFiles> open(const Checkpoint& checkpoint, ReaderOptions options = {});

    // Fills `to` from `offset` of a file; less than all of it is an error that names both.
    Status read(size_t file, uint64_t offset, std::span<std::byte> to) const;
    // The same into a slot, which starts at a page and is slot_bytes(bytes) long at least, the
    // fastest way that this file and machine have. The bytes lie where the slot's start plus the
    // offset's remainder by 4096 is, as aligned in memory as in the file; all of the slot may be
    // written.
    Result<std::span<std::byte>> read_into(size_t file, uint64_t offset, uint64_t bytes,
                                           std::span<std::byte> slot) const;
    static uint64_t slot_bytes(uint64_t bytes);

    // After the last read: each file has still the size and time it had.
    Status check_unchanged() const;
    // "ext4", "nfs", ...; a hexadecimal number for one that we have no name for.
    std::string filesystem() const;
    ReadReport report() const { return reader_->report(); }

  private:
    struct Entry {
        CheckpointFile facts;
        std::unique_ptr<ReadableFile> file;
    };
    std::vector<Entry> entries_;
    std::unique_ptr<FileReader> reader_;
};

} // namespace berth
