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
