// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "cache/checkpoint/checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace berth {

// A checkpoint's files while they are read: plain large reads, never a mapping, so that a disk that
// fails gives an error code and not a signal. Remembers what each file was when it was validated; a
// file that is another one by now is refused, before and after. read() is thread-safe; it blocks.
class SourceFiles {
  public:
    // FailedPrecondition, with the reason FileChanged, when a file changed since `checkpoint` was
    // opened.
    static Result<SourceFiles> open(const Checkpoint& checkpoint);

    // Fills `to` from `offset` of a file; less than all of it is an error that names both.
    Status read(size_t file, uint64_t offset, std::span<std::byte> to) const;
    // After the last read: each file has still the size and time it had.
    Status check_unchanged() const;
    // "ext4", "nfs", ...; a hexadecimal number for one that we have no name for.
    std::string filesystem() const;

  private:
    struct Entry {
        CheckpointFile file;
        UniqueFd fd;
    };
    std::vector<Entry> entries_;
};

} // namespace berth
