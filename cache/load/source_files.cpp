// SPDX-License-Identifier: Apache-2.0
#include "cache/load/source_files.h"

#include "cache/checkpoint/fault.h"
#include "cache/load/direct_read.h"
#include "cache/load/page_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <utility>

namespace berth {

namespace {

Status check_same(const CheckpointFile& file, int fd) {
    struct stat facts{};
    if (::fstat(fd, &facts) != 0)
        return fail_errno(file.path);
    auto bytes = static_cast<uint64_t>(facts.st_size);
    int64_t mtime_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
    if (bytes == file.bytes && mtime_ns == file.mtime_ns)
        return {};
    return fail_fault(
        {"FileChanged", file.name, "", fmt::format("{} bytes, modified at {} ns", bytes, mtime_ns),
         fmt::format("{} bytes, modified at {} ns, as it was validated", file.bytes, file.mtime_ns),
         "the file changed while it was loaded: load again once it is complete",
         ErrorCode::kFailedPrecondition});
}

} // namespace

Result<SourceFiles> SourceFiles::open(const Checkpoint& checkpoint, ReaderOptions options) {
    SourceFiles files;
    BERTH_ASSIGN(files.reader_, FileReader::create(options));
    for (const CheckpointFile& facts : checkpoint.files) {
        UniqueFd fd(::open(facts.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
        if (!fd)
            return fail_errno(facts.path);
        BERTH_TRY(check_same(facts, fd.get()));
        auto file = std::make_unique<ReadableFile>(facts.name, std::move(fd));
        BERTH_TRY(files.reader_->prepare(*file));
        files.entries_.push_back({facts, std::move(file)});
    }
    return files;
}

Status SourceFiles::read(size_t file, uint64_t offset, std::span<std::byte> to) const {
    const ReadableFile& from = *entries_[file].file;
    read_ahead(from.fd(), offset, to.size());
    BERTH_ASSIGN(uint64_t got, from.read_plain(offset, to));
    if (got < to.size())
        return from.fail_short(offset, got, to.size());
    return {};
}

uint64_t SourceFiles::slot_bytes(uint64_t bytes) {
    return round_up(bytes, kDirectAlignment) + 2 * kDirectAlignment;
}

Result<std::span<std::byte>> SourceFiles::read_into(size_t file, uint64_t offset, uint64_t bytes,
                                                    std::span<std::byte> slot) const {
    auto address = reinterpret_cast<uintptr_t>(slot.data());
    if (address % kDirectAlignment != 0 || slot.size() < bytes + 2 * kDirectAlignment)
        return fail(ErrorCode::kInternal,
                    fmt::format("a slot of {} bytes at {:#x} for a read of {}: expected {} more, "
                                "from the start of a page on",
                                slot.size(), address, bytes, 2 * kDirectAlignment));
    std::span<std::byte> to = slot.subspan(offset % kDirectAlignment, bytes);
    BERTH_TRY(reader_->read(*entries_[file].file, offset, to));
    return to;
}

Status SourceFiles::check_unchanged() const {
    for (const Entry& entry : entries_)
        BERTH_TRY(check_same(entry.facts, entry.file->fd()));
    return {};
}

std::string SourceFiles::filesystem() const {
    struct statfs facts{};
    if (entries_.empty() || ::fstatfs(entries_[0].file->fd(), &facts) != 0)
        return "unknown";
    struct Name {
        uint64_t magic;
        const char* name;
    };
    // The numbers are part of the kernel's interface.
    constexpr Name kNames[] = {
        {0xef53, "ext4"},       {0x58465342, "xfs"},   {0x9123683e, "btrfs"},
        {0x6969, "nfs"},        {0x01021994, "tmpfs"}, {0x794c7630, "overlayfs"},
        {0x0bd00bd0, "lustre"}, {0x65735546, "fuse"},  {0x2fc12fc1, "zfs"},
        {0x00c36400, "ceph"},   {0xff534d42, "cifs"},  {0x01021997, "9p"},
        {0x47504653, "gpfs"},
    };
    auto magic = static_cast<uint64_t>(facts.f_type) & 0xffffffff;
    for (const Name& known : kNames)
        if (known.magic == magic)
            return known.name;
    return fmt::format("{:#x}", magic);
}

} // namespace berth
