// SPDX-License-Identifier: Apache-2.0
#include "cache/load/new_file.h"

#include "base/hash.h"
#include "base/units.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace berth {

namespace {

constexpr mode_t kMode = 0644;
constexpr size_t kNoiseBytes = 8;
constexpr std::string_view kPartial = ".partial";

} // namespace

std::string partial_name(std::string_view name) {
    return fmt::format("{}.{}{}", name, random_hex(kNoiseBytes), kPartial);
}

std::optional<std::string_view> name_of_partial(std::string_view partial) {
    constexpr size_t kTail = 1 + 2 * kNoiseBytes + kPartial.size();
    if (partial.size() <= kTail || !partial.ends_with(kPartial))
        return std::nullopt;
    std::string_view tail = partial.substr(partial.size() - kTail);
    std::string_view digits = tail.substr(1, 2 * kNoiseBytes);
    if (tail.front() != '.' ||
        digits.find_first_not_of("0123456789abcdef") != std::string_view::npos)
        return std::nullopt;
    return partial.substr(0, partial.size() - kTail);
}

Result<NewFile> NewFile::create(const std::string& path) {
    NewFile file;
    file.path_ = path;
    std::filesystem::path folder = std::filesystem::path(path).parent_path();
    file.folder_name_ = folder.empty() ? "." : folder.string();
    // Now, and not when all has been written.
    file.folder_.reset(::open(file.folder_name_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!file.folder_)
        return fail_errno(fmt::format("{}: its folder {}", path, file.folder_name_));
    // Without a name it is gone with its writer, however that ends.
    file.fd_.reset(::open(file.folder_name_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kMode));
    if (file.fd_)
        return file;
    // Not every file system has such.
    file.temporary_ = partial_name(path);
    file.fd_.reset(::open(file.temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode));
    if (!file.fd_) {
        auto failed = fail_errno(file.temporary_);
        file.temporary_.clear();
        return failed;
    }
    return file;
}

NewFile::~NewFile() {
    if (fd_ && !temporary_.empty())
        ::unlink(temporary_.c_str());
}

Status NewFile::reserve(uint64_t bytes) const {
    int rc = 0;
    do {
        rc = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes));
    } while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return {};
    int error_number = errno;
    if (error_number == ENOSPC || error_number == EDQUOT) {
        struct statvfs facts{};
        bool known = ::statvfs(folder_name_.c_str(), &facts) == 0;
        return fail(
            Error{ErrorCode::kResourceExhausted,
                  fmt::format("{}: the image has {}, its folder has room for {}; free some, or "
                              "write it elsewhere",
                              path_, format_bytes(bytes),
                              known ? format_bytes(facts.f_bavail * facts.f_frsize) : "less"),
                  "NoRoom", error_number});
    }
    // A file system that cannot reserve: it grows as it is written.
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0)
        return fail_errno(path_);
    return {};
}

Status NewFile::write(uint64_t offset, std::span<const std::byte> bytes) const {
    for (size_t done = 0; done < bytes.size();) {
        ssize_t put = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                               static_cast<off_t>(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return fail_errno(
                fmt::format("{}: writing {} bytes at offset {}", path_, bytes.size(), offset));
        done += static_cast<size_t>(put);
    }
    return {};
}

Status NewFile::publish(Sync sync) {
    if (sync == nullptr)
        sync = ::fsync;
    if (sync(fd_.get()) != 0)
        return fail_errno(path_);
    if (temporary_.empty()) {
        std::string name = partial_name(path_);
        std::string self = fmt::format("/proc/self/fd/{}", fd_.get());
        if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0)
            return fail_errno(name);
        temporary_ = name;
    }
    // Puts it in an older file's place, too.
    if (::rename(temporary_.c_str(), path_.c_str()) != 0)
        return fail_errno(path_);
    temporary_.clear();
    if (sync(folder_.get()) != 0)
        return withdraw(fail_errno(fmt::format("{}: its folder {} could not be brought to disk",
                                               path_, folder_name_))
                            .value());
    return {};
}

tl::unexpected<Error> NewFile::withdraw(Error error) const {
    if (::unlink(path_.c_str()) == 0 || errno == ENOENT)
        error.message += "; the file was removed again";
    else
        error.message += fmt::format("; the file could not be removed again ({}): delete it",
                                     std::strerror(errno));
    return fail(std::move(error));
}

} // namespace berth
