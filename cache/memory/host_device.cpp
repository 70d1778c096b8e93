// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/host_device.h"

#include "base/units.h"
#include "cache/memory/host_grant.h"
#include "cache/memory/host_pages.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr int kSegmentSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
constexpr uint64_t kHostGrantStep = uint64_t{2} << 20;

// Pages that a direct read has filled are let go by a worker of the kernel, which may come late on
// a busy machine. Each try waits for them, up to three quarters of a second; where a writable
// mapping is the reason it fails at once.
constexpr int kSealTries = 12;

// A range of this process's address space.
struct HostRange final : Mapping::Owner {
    HostRange(void* address, uint64_t length) : at(address), bytes(length) {}
    ~HostRange() override { ::munmap(at, bytes); }
    void* at;
    uint64_t bytes;
};

struct HeldPages final : Mapping::Owner {
    explicit HeldPages(HostPages held) : pages(std::move(held)) {}
    HostPages pages;
};

Mapping mapping_of(void* at, uint64_t bytes) {
    return {static_cast<std::byte*>(at), bytes, std::make_unique<HostRange>(at, bytes)};
}

class HostWritableSegment final : public WritableSegment {
  public:
    HostWritableSegment(UniqueFd fd, Mapping mapping)
        : fd_(std::move(fd)), mapping_(std::move(mapping)), bytes_(mapping_.bytes()) {}

    std::byte* data() const override { return mapping_.data(); }
    uint64_t bytes() const override { return bytes_; }

    Result<Segment> seal() override {
        if (!fd_)
            return fail(ErrorCode::kFailedPrecondition, "the segment has been sealed already");
        // The kernel refuses to seal against writing while a writable mapping lives.
        mapping_.reset();
        int error_number = 0;
        for (int tries = 0; tries < kSealTries; ++tries) {
            error_number = ::fcntl(fd_.get(), F_ADD_SEALS, kSegmentSeals) == 0 ? 0 : errno;
            if (error_number != EBUSY)
                break;
        }
        if (error_number != 0) {
            if (error_number == EBUSY)
                return fail(ErrorCode::kFailedPrecondition,
                            "sealing the segment: something in this or a forked process still "
                            "maps it writable or has I/O under way on it; finish that first");
            return fail_errno("sealing the segment", error_number);
        }
        Segment segment;
        BERTH_ASSIGN(segment.fd, fd_.reopen(O_RDONLY));
        segment.bytes = bytes_;
        fd_.reset();
        return segment;
    }

  private:
    UniqueFd fd_;
    Mapping mapping_;
    uint64_t bytes_;
};

class HostDevice final : public Device {
  public:
    HostDevice(std::string id, DeviceCapabilities capabilities)
        : id_(std::move(id)), capabilities_(std::move(capabilities)) {}

    const std::string& id() const override { return id_; }
    const DeviceCapabilities& capabilities() const override { return capabilities_; }
    Result<std::unique_ptr<WritableSegment>> create_segment(uint64_t bytes,
                                                            const std::string& name) override;
    Result<Mapping> map_read_only(const Segment& segment) override;
    Result<std::unique_ptr<GrantArena>> create_grant(uint64_t bytes_max) override {
        return create_host_grant(bytes_max, capabilities_.grant_step_bytes);
    }
    Result<HostBuffer> create_host_buffer(uint64_t bytes) override;
    Result<Mapping> create_device_buffer(uint64_t bytes) override {
        BERTH_ASSIGN(HostBuffer buffer, create_host_buffer(bytes));
        return std::move(buffer.mapping);
    }

    // The CPU does the copying, so each copy is done when the call returns, lanes' copies too.
    Status copy_to_device(std::byte* device, const std::byte* host, uint64_t bytes) override {
        std::memcpy(device, host, bytes);
        return {};
    }
    Status copy_to_host(std::byte* host, const std::byte* device, uint64_t bytes) override {
        std::memcpy(host, device, bytes);
        return {};
    }
    Status start_copy_to_device(int lane, std::byte* device, const std::byte* host,
                                uint64_t bytes) override {
        BERTH_TRY(check_lane(lane));
        return copy_to_device(device, host, bytes);
    }
    Status wait_lane(int lane) override { return check_lane(lane); }
    Status synchronize() override { return {}; }

    Result<DeviceMemory> memory() override {
        BERTH_ASSIGN(HostMemory host, host_memory());
        return DeviceMemory{host.total_bytes, host.total_bytes - host.available_bytes};
    }

  private:
    static Status check_lane(int lane) {
        if (lane < 0 || lane >= kLanes)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("lane {}: lanes are 0 to {}", lane, kLanes - 1));
        return {};
    }

    std::string id_;
    DeviceCapabilities capabilities_;
};

Result<std::unique_ptr<WritableSegment>> HostDevice::create_segment(uint64_t bytes,
                                                                    const std::string& name) {
    if (bytes == 0)
        return fail(ErrorCode::kInvalidArgument, "a segment of 0 bytes was asked for");
    uint64_t rounded = round_up(bytes, capabilities_.granularity_bytes);
    UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd)
        return fail_errno(fmt::format("memfd_create({})", name));
    BERTH_TRY(reserve_host_bytes(fd.get(), 0, rounded, fmt::format("segment {}", name)));
    void* at = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED)
        return fail_errno(fmt::format("mapping {} bytes of segment {}", rounded, name));
    // A child that inherited the mapping would keep it from being sealed.
    ::madvise(at, rounded, MADV_DONTFORK);
    return std::make_unique<HostWritableSegment>(std::move(fd), mapping_of(at, rounded));
}

Result<Mapping> HostDevice::map_read_only(const Segment& segment) {
    struct stat facts{};
    if (::fstat(segment.fd.get(), &facts) != 0)
        return fail_errno("looking at the segment's descriptor");
    int seals = ::fcntl(segment.fd.get(), F_GET_SEALS);
    if (seals < 0)
        return fail(ErrorCode::kInvalidArgument,
                    "the segment's descriptor is no memfd: a host device maps sealed memfds only");
    if ((seals & kSegmentSeals) != kSegmentSeals)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("the segment is not sealed (seals {:#x}, expected {:#x}): its "
                                "owner could still change the bytes under its readers",
                                seals, kSegmentSeals),
                    "NotSealed");
    auto size = static_cast<uint64_t>(facts.st_size);
    if (segment.bytes == 0 || size < segment.bytes)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("the segment has {} bytes, expected {}", size, segment.bytes));
    void* at = ::mmap(nullptr, segment.bytes, PROT_READ, MAP_SHARED, segment.fd.get(), 0);
    if (at == MAP_FAILED)
        return fail_errno(fmt::format("mapping {} bytes of a segment", segment.bytes));
    return mapping_of(at, segment.bytes);
}

Result<HostBuffer> HostDevice::create_host_buffer(uint64_t bytes) {
    BERTH_ASSIGN(HostPages pages, HostPages::create(bytes, capabilities_.numa_node));
    auto owner = std::make_unique<HeldPages>(std::move(pages));
    std::byte* data = owner->pages.data();
    return HostBuffer{Mapping(data, bytes, std::move(owner))};
}

std::optional<uint64_t> meminfo_field(std::string_view text, std::string_view name) {
    size_t at = text.find(name);
    if (at == std::string_view::npos)
        return std::nullopt;
    at = text.find_first_of("0123456789", at + name.size());
    if (at == std::string_view::npos)
        return std::nullopt;
    uint64_t kib = 0;
    std::from_chars(text.data() + at, text.data() + text.size(), kib);
    return kib << 10;
}

} // namespace

Result<HostMemory> host_memory() {
    BERTH_ASSIGN(std::string text, read_file("/proc/meminfo"));
    auto total = meminfo_field(text, "MemTotal:");
    auto available = meminfo_field(text, "MemAvailable:");
    if (!total || !available || *available > *total)
        return fail(ErrorCode::kCorrupt, "/proc/meminfo has no usable MemTotal and MemAvailable");
    return HostMemory{*total, *available};
}

Status reserve_host_bytes(int fd, uint64_t offset, uint64_t bytes, std::string_view what) {
    BERTH_ASSIGN(HostMemory host, host_memory());
    if (bytes > host.available_bytes)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("{}: {} wanted, but the machine has {} of memory to give", what,
                                format_bytes(bytes), format_bytes(host.available_bytes)));
    int rc = 0;
    do {
        rc = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return {};
    int error_number = errno;
    if (error_number == ENOSPC || error_number == ENOMEM)
        return fail(Error{ErrorCode::kResourceExhausted,
                          fmt::format("{}: no room for {} ({}); the machine or this control group "
                                      "is out of memory",
                                      what, format_bytes(bytes), std::strerror(error_number)),
                          {},
                          error_number});
    return fail_errno(fmt::format("{}: reserving {} bytes", what, bytes), error_number);
}

Result<uint64_t> grant_step_from_environment(uint64_t granularity, uint64_t fallback) {
    const char* text = std::getenv("BERTH_GRANT_STEP");
    if (text == nullptr || *text == '\0')
        return fallback;
    auto step = parse_bytes(text);
    if (!step)
        return fail_in("environment variable BERTH_GRANT_STEP", std::move(step).error());
    if (*step == 0 || *step % granularity != 0)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("environment variable BERTH_GRANT_STEP: {} is not a multiple of "
                                "the device's granularity, {}",
                                text, format_bytes_exact(granularity)));
    return *step;
}

Result<std::unique_ptr<Device>> open_host_device(const std::string& id) {
    DeviceCapabilities capabilities;
    capabilities.granularity_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    BERTH_ASSIGN(capabilities.grant_step_bytes,
                 grant_step_from_environment(capabilities.granularity_bytes, kHostGrantStep));
    capabilities.name = "host memory";
    return std::make_unique<HostDevice>(id, std::move(capabilities));
}

} // namespace berth
