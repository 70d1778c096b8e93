// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/zygote/checks.h"

#include <fmt/format.h>

#include <filesystem>

namespace berth::zygote {

namespace fs = std::filesystem;

Status check_single_task(const std::string& tasks) {
    std::error_code error;
    size_t count = 0;
    std::string found;
    for (fs::directory_iterator entry(tasks, error), end; !error && entry != end;
         entry.increment(error)) {
        ++count;
        found += (found.empty() ? "" : ", ") + entry->path().filename().string();
    }
    if (error)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("{} cannot be read: {}", tasks, error.message()));
    if (count != 1)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("it has {} threads ({}) and may have one: a library or a preloaded "
                                "object has started them",
                                count, found),
                    "NotSingleThreaded");
    return {};
}

Status check_no_gpu_open(const std::string& descriptors) {
    std::error_code error;
    for (fs::directory_iterator entry(descriptors, error), end; !error && entry != end;
         entry.increment(error)) {
        std::error_code gone; // the folder's own descriptor, say
        const std::string target = fs::read_symlink(entry->path(), gone).string();
        if (target.starts_with("/dev/nvidia"))
            return fail(ErrorCode::kFailedPrecondition,
                        fmt::format("it has {} open as descriptor {}: a library has started the "
                                    "driver, which a fork could not use",
                                    target, entry->path().filename().string()),
                        "DeviceOpen");
    }
    if (error)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("{} cannot be read: {}", descriptors, error.message()));
    return {};
}

} // namespace berth::zygote
