// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/device.h"

#include "cache/memory/host_device.h"
#ifdef BERTH_HAVE_CUDA
#include "cache/memory/cuda_device.h"
#endif

#include <fmt/format.h>

#include <algorithm>

namespace berth {

std::string_view to_string(DeviceKind kind) {
    switch (kind) {
    case DeviceKind::kHost:
        return "host";
    case DeviceKind::kCuda:
        return "cuda";
    }
    return "unknown";
}

Result<DeviceKind> device_kind_from(std::string_view name) {
    if (name == "host")
        return DeviceKind::kHost;
    if (name == "cuda")
        return DeviceKind::kCuda;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("unknown device kind '{}': expected host or cuda", name));
}

namespace {

// A segment that is never sealed is scratch memory.
struct SegmentOwner final : Mapping::Owner {
    explicit SegmentOwner(std::unique_ptr<WritableSegment> held) : segment(std::move(held)) {}
    std::unique_ptr<WritableSegment> segment;
};

} // namespace

Result<Mapping> Device::create_device_buffer(uint64_t bytes) {
    BERTH_ASSIGN(auto segment, create_segment(bytes, "berth-scratch"));
    std::byte* data = segment->data();
    return Mapping(data, bytes, std::make_unique<SegmentOwner>(std::move(segment)));
}

Status Device::check_copy_2d(uint64_t device_pitch, uint64_t host_pitch, uint64_t width,
                             uint64_t height) {
    if (height > 1 && (device_pitch < width || host_pitch < width))
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("a copy of rows of {} bytes: the rows overlap, which lie {} bytes "
                                "apart on the device and {} on the host",
                                width, device_pitch, host_pitch));
    return {};
}

Status Device::start_copy_2d_to_device(int lane, std::byte* device, uint64_t device_pitch,
                                       const std::byte* host, uint64_t host_pitch, uint64_t width,
                                       uint64_t height) {
    BERTH_TRY(check_copy_2d(device_pitch, host_pitch, width, height));
    for (uint64_t row = 0; row < height; ++row)
        BERTH_TRY(start_copy_to_device(lane, device + row * device_pitch, host + row * host_pitch,
                                       width));
    return {};
}

Result<std::unique_ptr<KernelModule>> Device::load_kernels(std::span<const std::byte>) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("device {} ({}) runs no kernels", id(), capabilities().name),
                "NoKernels");
}

Status Device::start_kernel(int, KernelModule::Function, uint32_t, uint32_t, std::span<void*>) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("device {} ({}) runs no kernels", id(), capabilities().name),
                "NoKernels");
}

namespace {

bool is_host_id(std::string_view id) {
    if (!id.starts_with("host-") || id.size() == 5 || id.size() > 9)
        return false;
    std::string_view digits = id.substr(5);
    return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}

} // namespace

Result<std::unique_ptr<Device>> open_device(const std::string& id) {
    if (is_host_id(id))
        return open_host_device(id);
    if (id == "cuda" || id.starts_with("GPU-") || id.starts_with("MIG-")) {
#ifdef BERTH_HAVE_CUDA
        return open_cuda_device(id);
#else
        return fail(ErrorCode::kUnsupported,
                    fmt::format("device {}: this build has no cuda backend, because cuda.h was not "
                                "found when it was configured",
                                id),
                    "NoCudaBackend");
#endif
    }
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is no device: expected host-N, cuda, or a GPU's or MIG "
                            "instance's UUID (GPU-..., MIG-...; nvidia-smi -L lists them)",
                            id));
}

} // namespace berth
