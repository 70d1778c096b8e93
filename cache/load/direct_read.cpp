// SPDX-License-Identifier: Apache-2.0
#include "cache/load/direct_read.h"

#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace berth {

namespace {

// The largest aligned count that one read(2) takes.
constexpr uint64_t kReadBytesMax = uint64_t{1} << 30;
// The kernel may put a read off; not for ever.
constexpr int kRetriesMax = 1000;

struct Piece {
    uint64_t start = 0; // within the range
    uint64_t bytes = 0;
    uint64_t done = 0;
    int retries = 0;
    bool ended = false; // all of it, or the file's end
};

// The pieces of one range on their way through a ring.
class QueuedRead {
  public:
    QueuedRead(Uring& ring, int fd, uint64_t offset, std::span<std::byte> to)
        : ring_(ring), fd_(fd), offset_(offset), to_(to) {
        for (uint64_t start = 0; start < to.size(); start += kDirectPieceBytes)
            pieces_.push_back({start, std::min(kDirectPieceBytes, to.size() - start)});
    }

    // On an error nothing more is started, and what is under way is waited for.
    Result<uint64_t> run() {
        size_t next = 0;
        while (next < pieces_.size() || ring_.in_flight() > 0) {
            while (error_ == 0 && next < pieces_.size() && ring_.in_flight() < ring_.depth())
                start(next++);
            if (ring_.in_flight() == 0)
                break;
            ring_.wait();
            while (auto done = ring_.take())
                finish(static_cast<size_t>(done->tag), done->result);
        }
        if (error_ != 0)
            return fail_errno(
                fmt::format("direct read of {} bytes at offset {}", to_.size(), offset_), error_);
        return bytes_from_start();
    }

  private:
    void start(size_t index) {
        const Piece& piece = pieces_[index];
        uint64_t at = piece.start + piece.done;
        ring_.add_read(fd_, offset_ + at, to_.subspan(at, piece.bytes - piece.done), index);
    }

    void finish(size_t index, int result) {
        Piece& piece = pieces_[index];
        bool again = result == -EINTR || result == -EAGAIN;
        if (again && ++piece.retries > kRetriesMax)
            again = false;
        if (again && error_ == 0)
            return start(index);
        if (result < 0) {
            error_ = error_ != 0 ? error_ : -result;
            return;
        }
        auto got = static_cast<uint64_t>(result);
        piece.done += got;
        piece.ended = piece.done == piece.bytes || got == 0 || got % kDirectAlignment != 0;
        if (!piece.ended && error_ == 0)
            start(index);
    }

    uint64_t bytes_from_start() const {
        uint64_t bytes = 0;
        for (const Piece& piece : pieces_) {
            bytes += piece.done;
            if (piece.done < piece.bytes)
                break;
        }
        return bytes;
    }

    Uring& ring_;
    int fd_;
    uint64_t offset_;
    std::span<std::byte> to_;
    std::vector<Piece> pieces_;
    int error_ = 0;
};

} // namespace

Result<uint64_t> read_direct(int fd, uint64_t offset, std::span<std::byte> to) {
    uint64_t done = 0;
    while (done < to.size()) {
        uint64_t count = std::min(to.size() - done, kReadBytesMax);
        ssize_t got = ::pread(fd, to.data() + done, count, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(
                fmt::format("direct read of {} bytes at offset {}", count, offset + done));
        done += static_cast<uint64_t>(got);
        if (got == 0 || static_cast<uint64_t>(got) % kDirectAlignment != 0)
            break;
    }
    return done;
}

Result<uint64_t> read_direct(Uring& ring, int fd, uint64_t offset, std::span<std::byte> to) {
    return QueuedRead(ring, fd, offset, to).run();
}

bool is_direct_refused(int error_number) {
    return error_number == EINVAL || error_number == EOPNOTSUPP || error_number == ENOTSUP;
}

} // namespace berth
