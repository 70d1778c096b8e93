// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace berth {

// A file that has no name in its folder, or one of its own, until it is whole: what there was under
// the name stays until then, and after a failure too. One thread, but write(), which any may call.
// All of it blocks on the disk.
class NewFile {
  public:
    static Result<NewFile> create(const std::string& path);
    NewFile(NewFile&&) noexcept = default;
    NewFile& operator=(NewFile&&) = delete;
    ~NewFile();

    // Takes the room, so that a full disk is known before anything is copied.
    Status reserve(uint64_t bytes) const;
    Status write(uint64_t offset, std::span<const std::byte> bytes) const;

    // As fsync(2); tests give one that fails.
    using Sync = int (*)(int fd);
    // All of it on disk first, then its name. After a failure it is under no name: a file of which
    // it is not known whether it outlives a power cut is nobody's.
    Status publish(Sync sync = nullptr);

  private:
    NewFile() = default;
    tl::unexpected<Error> withdraw(Error error) const;

    std::string path_;
    std::string folder_name_;
    std::string temporary_; // empty: it has no name
    UniqueFd folder_;
    UniqueFd fd_;
};

// The name under which the file named `name` is written where it needs one: NAME.16 DIGITS.partial.
std::string partial_name(std::string_view name);
// The NAME of such a one; nullopt when it is none.
std::optional<std::string_view> name_of_partial(std::string_view partial);

} // namespace berth
