// SPDX-License-Identifier: Apache-2.0
#include "cache/load/file_reader.h"

#include "cache/checkpoint/fault.h"
#include "cache/load/direct_read.h"

#include <fcntl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace berth {

namespace {

// What fstatfs(2) says of a tmpfs, and of memfds.
constexpr uint64_t kTmpfsMagic = 0x01021994;
// Pieces of one range that the disk works on at once; more than that it has from other streams.
constexpr unsigned kRingDepth = 8;
// The largest count that one read(2) takes.
constexpr size_t kReadBytesMax = size_t{1} << 30;

constexpr std::array<std::pair<ReadMethod, std::string_view>, 4> kMethodNames = {{
    {ReadMethod::kAuto, "auto"},
    {ReadMethod::kUring, "io_uring"},
    {ReadMethod::kPread, "pread"},
    {ReadMethod::kBuffered, "buffered"},
}};

// What the cache has of a range's inner pages: those at its ends may be there because a neighbour
// is being read.
Cached inner_state(int fd, uint64_t offset, uint64_t bytes) {
    uint64_t start = round_up(offset, kDirectAlignment);
    uint64_t end = align_down(offset + bytes);
    return start < end ? cached_state(fd, start, end - start) : cached_state(fd, offset, bytes);
}

} // namespace

std::string_view to_string(ReadMethod method) {
    for (const auto& [known, name] : kMethodNames)
        if (known == method)
            return name;
    return "unknown";
}

Result<ReadMethod> read_method_from(std::string_view name) {
    for (const auto& [method, known] : kMethodNames)
        if (known == name)
            return method;
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("unknown reader '{}': expected auto, io_uring, pread or buffered", name));
}

std::string ReadReport::text() const {
    return fmt::format("reader={} reason='{}' streams={} disk_gb_per_s={:.2f} cached_bytes={} "
                       "disk_bytes={}",
                       method, reason, streams, disk_bytes_per_second / 1e9, cached_bytes,
                       disk_bytes);
}

ReadableFile::ReadableFile(std::string name, UniqueFd plain)
    : name_(std::move(name)), plain_(std::move(plain)) {
    // Read-ahead would bring in pages behind a range's end, which nobody would drop again; and
    // looking for cached bytes would start it.
    (void)::posix_fadvise(plain_.get(), 0, 0, POSIX_FADV_RANDOM);
    struct statfs facts{};
    is_in_memory_ = ::fstatfs(plain_.get(), &facts) == 0 &&
                    (static_cast<uint64_t>(facts.f_type) & 0xffffffff) == kTmpfsMagic;
}

Result<uint64_t> ReadableFile::read_plain(uint64_t offset, std::span<std::byte> to) const {
    uint64_t done = 0;
    while (done < to.size()) {
        size_t count = std::min(to.size() - done, kReadBytesMax);
        ssize_t got = ::pread(fd(), to.data() + done, count, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(
                fmt::format("{}: read of {} bytes at offset {}", name_, count, offset + done));
        if (got == 0)
            break;
        done += static_cast<uint64_t>(got);
    }
    return done;
}

tl::unexpected<Error> ReadableFile::fail_short(uint64_t offset, uint64_t found,
                                               uint64_t expected) const {
    return fail_fault({"ShortRead", name_, "",
                       fmt::format("{} of {} bytes at offset {}", found, expected, offset),
                       "all of them", "the file became shorter while it was loaded"});
}

Result<std::unique_ptr<FileReader>> FileReader::create(ReaderOptions options) {
    std::unique_ptr<FileReader> reader(new FileReader(options.method));
    reader->reason_ = options.method == ReadMethod::kAuto ? "the kernel lets it" : "asked for";
    if (options.method != ReadMethod::kAuto && options.method != ReadMethod::kUring)
        return reader;
    reader->method_ = ReadMethod::kUring;
    BERTH_ASSIGN(std::unique_ptr<Uring> ring, reader->take_ring());
    if (ring)
        reader->give_ring_back(std::move(ring));
    return reader;
}

Status FileReader::prepare(ReadableFile& file) {
    if (asked_ == ReadMethod::kBuffered)
        return {};
    auto direct = file.plain_.reopen(O_RDONLY | O_DIRECT | O_NOCTTY);
    if (!direct)
        return refuse_direct(file, direct.error());
    file.direct_ = std::move(*direct);
    file.takes_direct_ = true;
    return {};
}

Status FileReader::refuse_direct(ReadableFile& file, const Error& error) {
    file.takes_direct_ = false;
    std::string why = fmt::format("{} takes no direct reads: {}", file.name(), error.message);
    if (asked_ != ReadMethod::kAuto)
        return fail(Error{ErrorCode::kUnsupported,
                          fmt::format("{}; reader {} needs them, auto or buffered does not", why,
                                      to_string(asked_)),
                          "NoDirectReads", error.source});
    std::lock_guard lock(mutex_);
    reason_ = std::move(why);
    return {};
}

Result<std::unique_ptr<Uring>> FileReader::take_ring() {
    {
        std::lock_guard lock(mutex_);
        if (method_ != ReadMethod::kUring)
            return nullptr;
        if (!idle_rings_.empty()) {
            std::unique_ptr<Uring> ring = std::move(idle_rings_.back());
            idle_rings_.pop_back();
            return ring;
        }
    }
    auto ring = Uring::create(kRingDepth);
    if (ring || asked_ == ReadMethod::kUring)
        return ring;
    std::lock_guard lock(mutex_);
    method_ = ReadMethod::kPread;
    reason_ = ring.error().message;
    return nullptr;
}

void FileReader::give_ring_back(std::unique_ptr<Uring> ring) {
    std::lock_guard lock(mutex_);
    idle_rings_.push_back(std::move(ring));
}

Status FileReader::read(ReadableFile& file, uint64_t offset, std::span<std::byte> to) {
    BERTH_ASSIGN(uint64_t got, read_some(file, offset, to));
    if (got < to.size())
        return file.fail_short(offset, got, to.size());
    return {};
}

Result<uint64_t> FileReader::read_some(ReadableFile& file, uint64_t offset,
                                       std::span<std::byte> to) {
    // tmpfs cannot tell what would wait, and nothing does: no turns, all threads at once.
    if (asked_ == ReadMethod::kAuto && file.is_in_memory()) {
        BERTH_ASSIGN(uint64_t got, file.read_plain(offset, to));
        cached_bytes_ += got;
        return got;
    }
    Cached whole = inner_state(file.fd(), offset, to.size());
    if (whole != Cached::kSome)
        return read_run(file, offset, to, whole);
    // Pieces of the file that are alike go together.
    size_t start = 0;
    Cached like = Cached::kSome;
    for (size_t at = 0; at < to.size();) {
        size_t piece =
            std::min<size_t>(to.size() - at, kDirectPieceBytes - (offset + at) % kDirectPieceBytes);
        Cached cached = inner_state(file.fd(), offset + at, piece);
        if (at > start && cached != like) {
            BERTH_ASSIGN(uint64_t got,
                         read_run(file, offset + start, to.subspan(start, at - start), like));
            if (got < at - start)
                return start + got;
            start = at;
        }
        like = cached;
        at += piece;
    }
    BERTH_ASSIGN(uint64_t got, read_run(file, offset + start, to.subspan(start), like));
    return start + got;
}

Result<uint64_t> FileReader::read_run(ReadableFile& file, uint64_t offset, std::span<std::byte> to,
                                      Cached cached) {
    uint64_t done = cached == Cached::kAll ? read_cached(file.fd(), offset, to) : 0;
    cached_bytes_ += done;
    if (done == to.size())
        return done;
    BERTH_ASSIGN(uint64_t got,
                 read_disk(file, offset + done, to.subspan(done), cached != Cached::kNone));
    return done + got;
}

Result<uint64_t> FileReader::read_disk(ReadableFile& file, uint64_t offset, std::span<std::byte> to,
                                       bool keep) {
    if (!file.takes_direct_)
        return read_buffered(file, offset, to, keep);
    uint64_t start = align_down(offset);
    uint64_t before = offset - start;
    std::span<std::byte> wide(to.data() - before,
                              round_up(offset + to.size(), kDirectAlignment) - start);
    auto got = read_aligned(file, start, wide);
    if (!got && is_direct_refused(got.error().source)) {
        BERTH_TRY(refuse_direct(file, got.error()));
        return read_buffered(file, offset, to, keep);
    }
    if (!got)
        return fail_in(file.name(), std::move(got).error());
    uint64_t done = std::min<uint64_t>(*got > before ? *got - before : 0, to.size());
    if (done == to.size())
        return done;
    // The file's end came too early, unless a plain read sees more of it.
    BERTH_ASSIGN(uint64_t more, file.read_plain(offset + done, to.subspan(done)));
    return done + more;
}

Result<uint64_t> FileReader::read_aligned(ReadableFile& file, uint64_t offset,
                                          std::span<std::byte> to) {
    DiskGate::Turn turn = gate_.enter();
    BERTH_ASSIGN(std::unique_ptr<Uring> ring, take_ring());
    auto got = ring ? read_direct(*ring, file.direct_.get(), offset, to)
                    : read_direct(file.direct_.get(), offset, to);
    if (got) {
        turn.add_bytes(*got);
        (ring ? uring_bytes_ : pread_bytes_) += *got;
    }
    // One that failed is not used again.
    if (got && ring)
        give_ring_back(std::move(ring));
    return got;
}

Result<uint64_t> FileReader::read_buffered(ReadableFile& file, uint64_t offset,
                                           std::span<std::byte> to, bool keep) {
    DiskGate::Turn turn = gate_.enter();
    // What is dropped afterwards: the pages that were not there before, at the ends too.
    uint64_t start = align_down(offset);
    uint64_t end = round_up(offset + to.size(), kDirectAlignment);
    if (cached_state(file.fd(), start, 1) != Cached::kNone)
        start += kDirectAlignment;
    if (cached_state(file.fd(), end - 1, 1) != Cached::kNone)
        end -= kDirectAlignment;
    read_ahead(file.fd(), offset, to.size());
    BERTH_ASSIGN(uint64_t got, file.read_plain(offset, to));
    if (!keep && start < end)
        drop_cached(file.fd(), start, end - start);
    turn.add_bytes(got);
    buffered_bytes_ += got;
    return got;
}

ReadReport FileReader::report() const {
    ReadReport report;
    report.cached_bytes = cached_bytes_;
    report.disk_bytes = uring_bytes_ + pread_bytes_ + buffered_bytes_;
    report.streams = gate_.streams();
    report.disk_bytes_per_second = gate_.bytes_per_second();
    std::lock_guard lock(mutex_);
    report.reason = reason_;
    ReadMethod method = method_;
    // What most bytes came by, where files differ.
    uint64_t most = 0;
    for (auto [used, bytes] : {std::pair(ReadMethod::kUring, uring_bytes_.load()),
                               std::pair(ReadMethod::kPread, pread_bytes_.load()),
                               std::pair(ReadMethod::kBuffered, buffered_bytes_.load())})
        if (bytes > most) {
            most = bytes;
            method = used;
        }
    report.method = to_string(method);
    return report;
}

} // namespace berth
