// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/host_grant.h"

#include "cache/memory/host_device.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace berth {

namespace {

class HostGrant final : public GrantArena {
  public:
    HostGrant(UniqueFd fd, std::byte* base, uint64_t bytes_max, uint64_t step)
        : fd_(std::move(fd)), base_(base), bytes_max_(bytes_max), step_(step) {}
    ~HostGrant() override { ::munmap(base_, bytes_max_); }

    std::byte* data() const override { return base_; }
    uint64_t bytes() const override { return bytes_; }
    uint64_t bytes_max() const override { return bytes_max_; }
    uint64_t step_bytes() const override { return step_; }

    Status resize(uint64_t wanted) override {
        if (wanted > bytes_max_)
            return fail(
                ErrorCode::kInvalidArgument,
                fmt::format("a grant of {} bytes cannot be resized to {}", bytes_max_, wanted));
        uint64_t bytes = round_up(wanted, step_);
        if (bytes > bytes_)
            return grow(bytes);
        return bytes < bytes_ ? shrink(bytes) : Status{};
    }

  private:
    Status grow(uint64_t bytes) {
        uint64_t more = bytes - bytes_;
        auto reserved = reserve_host_bytes(fd_.get(), bytes_, more, "grant");
        if (!reserved) {
            // A reservation that failed half way may have lengthened the file.
            (void)!::ftruncate(fd_.get(), static_cast<off_t>(bytes_));
            return reserved;
        }
        void* at = ::mmap(base_ + bytes_, more, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                          fd_.get(), static_cast<off_t>(bytes_));
        if (at == MAP_FAILED) {
            auto error = fail_errno(fmt::format("mapping {} more bytes of the grant", more));
            unback(bytes_, more);
            (void)!::ftruncate(fd_.get(), static_cast<off_t>(bytes_));
            return error;
        }
        // A forked child must neither use the grant nor be counted as its holder.
        ::madvise(at, more, MADV_DONTFORK);
        bytes_ = bytes;
        return {};
    }

    Status shrink(uint64_t bytes) {
        if (!unback(bytes, bytes_ - bytes))
            return fail_errno(fmt::format("unmapping {} bytes of the grant", bytes_ - bytes));
        if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0)
            return fail_errno(fmt::format("giving back {} bytes of the grant", bytes_ - bytes));
        bytes_ = bytes;
        return {};
    }

    // Puts the reservation back in place of the mapping, in one call, so that nobody else's mapping
    // can come to lie in between.
    bool unback(uint64_t offset, uint64_t bytes) {
        return ::mmap(base_ + offset, bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
    }

    UniqueFd fd_;
    std::byte* base_;
    uint64_t bytes_ = 0;
    uint64_t bytes_max_;
    uint64_t step_;
};

} // namespace

Result<std::unique_ptr<GrantArena>> create_host_grant(uint64_t bytes_max, uint64_t step_bytes) {
    if (bytes_max == 0)
        return fail(ErrorCode::kInvalidArgument, "a grant of at most 0 bytes was asked for");
    uint64_t rounded = round_up(bytes_max, step_bytes);
    std::string name = fmt::format("berth-grant:{}", ::getpid());
    UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC));
    if (!fd)
        return fail_errno(fmt::format("memfd_create({})", name));
    void* at =
        ::mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return fail_errno(fmt::format("reserving {} bytes of addresses for a grant", rounded));
    return std::make_unique<HostGrant>(std::move(fd), static_cast<std::byte*>(at), rounded,
                                       step_bytes);
}

} // namespace berth
