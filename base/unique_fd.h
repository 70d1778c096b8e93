// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace berth {

// Owns one file descriptor. Empty (-1) is legal; reset() is idempotent. Not thread-safe.
class UniqueFd {
  public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) noexcept : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        if (this != &other)
            reset(std::exchange(other.fd_, -1));
        return *this;
    }
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    ~UniqueFd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    void reset(int fd = -1) noexcept;

    // A second descriptor of the same open file description, close-on-exec.
    Result<UniqueFd> duplicate() const;
    // A new open file description of the same file, through /proc/self/fd; `flags` as for open(2),
    // O_CLOEXEC is added.
    Result<UniqueFd> reopen(int flags) const;

  private:
    int fd_ = -1;
};

// Reads all of a regular file or of /proc; refuses more than `bytes_max`.
Result<std::string> read_file(const std::string& path, size_t bytes_max = size_t{64} << 20);
// Writes a file so that a reader sees the old bytes or the new, never a part: a temporary beside
// it, fsync, rename.
Status write_file_atomic(const std::string& path, std::string_view bytes, int mode = 0644);
// mkdir -p.
Status make_directories(const std::string& path, int mode = 0755);

} // namespace berth
