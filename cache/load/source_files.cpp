// SPDX-License-Identifier: Apache-2.0
#include "cache/load/source_files.h"

#include "cache/checkpoint/fault.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace berth {

namespace {

// The largest count that one read(2) takes.
constexpr size_t kReadBytesMax = size_t{1} << 30;

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

Result<SourceFiles> SourceFiles::open(const Checkpoint& checkpoint) {
    SourceFiles files;
    for (const CheckpointFile& file : checkpoint.files) {
        UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
        if (!fd)
            return fail_errno(file.path);
        BERTH_TRY(check_same(file, fd.get()));
        // Advice only; a file system that knows none reads as well.
        (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
        files.entries_.push_back({file, std::move(fd)});
    }
    return files;
}

Status SourceFiles::read(size_t file, uint64_t offset, std::span<std::byte> to) const {
    const Entry& entry = entries_[file];
    size_t done = 0;
    while (done < to.size()) {
        size_t count = std::min(to.size() - done, kReadBytesMax);
        ssize_t got =
            ::pread(entry.fd.get(), to.data() + done, count, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(fmt::format("{}: read {} bytes at offset {}", entry.file.name, count,
                                          offset + done));
        if (got == 0)
            return fail_fault({"ShortRead", entry.file.name, "",
                               fmt::format("{} of {} bytes at offset {}", done, to.size(), offset),
                               "all of them", "the file became shorter while it was loaded"});
        done += static_cast<size_t>(got);
    }
    return {};
}

Status SourceFiles::check_unchanged() const {
    for (const Entry& entry : entries_)
        BERTH_TRY(check_same(entry.file, entry.fd.get()));
    return {};
}

std::string SourceFiles::filesystem() const {
    struct statfs facts{};
    if (entries_.empty() || ::fstatfs(entries_[0].fd.get(), &facts) != 0)
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
