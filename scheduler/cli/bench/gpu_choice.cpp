// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/gpu_choice.h"

#include "cache/memory/nvml.h"

#include <fmt/format.h>

#include <vector>

namespace berth::cli::bench {

Result<std::string> gpu_named(const std::string& device) {
    if (device != "auto")
        return device;
    auto nvml = Nvml::open();
    auto gpus = nvml ? nvml->devices() : Result<std::vector<NvmlDevice>>(fail(nvml.error()));
    if (gpus && !gpus->empty())
        return gpus->front().uuid;
    return fail(ErrorCode::kUnsupported,
                fmt::format("no GPU is here ({}); --device host runs on host memory",
                            gpus ? "the driver lists none" : gpus.error().message),
                "NoGpu");
}

} // namespace berth::cli::bench
