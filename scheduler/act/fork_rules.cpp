// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/fork_rules.h"

#include "engine_shim/zygote/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <sys/stat.h>

namespace berth {

namespace {

// What is read while libraries are loaded, or may be: the dynamic loader, the C library's
// allocator, OpenMP and other thread pools, torch, CUDA's libraries.
constexpr std::array<std::string_view, 22> kReadEarly = {
    "LD_",     "GLIBC_TUNABLES", "MALLOC_", "OMP_",    "GOMP_", "KMP_",  "MKL_",  "OPENBLAS_",
    "DNNL_",   "ONEDNN_",        "TORCH",   "PYTORCH", "ATEN_", "C10_",  "CUDA_", "CUDNN_",
    "CUBLAS_", "NVIDIA_",        "KINETO_", "ASAN_",   "TSAN_", "UBSAN_"};
// What the driver reads when it is started, which a zygote has not done.
constexpr std::array<std::string_view, 4> kReadLate = {
    "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"};

bool is_read_early(std::string_view name) {
    return std::ranges::any_of(kReadEarly,
                               [&](std::string_view prefix) { return name.starts_with(prefix); }) &&
           std::ranges::find(kReadLate, name) == kReadLate.end();
}

using Variables = std::map<std::string_view, std::string_view>;

Variables read_early(const std::vector<std::string>& environment) {
    Variables found;
    for (const std::string& text : environment) {
        const size_t equals = text.find('=');
        const std::string_view name = std::string_view(text).substr(0, equals);
        if (equals != std::string::npos && is_read_early(name))
            found.emplace(name, std::string_view(text).substr(equals + 1));
    }
    return found;
}

// A variable of the one that is not the same in the other.
std::optional<std::string_view> differs(const Variables& one, const Variables& other) {
    for (const auto& [name, text] : one)
        if (const auto found = other.find(name); found == other.end() || found->second != text)
            return name;
    return std::nullopt;
}

size_t bytes_of(const std::vector<std::string>& texts) {
    size_t bytes = 0;
    for (const std::string& text : texts)
        bytes += text.size() + 1;
    return bytes;
}

} // namespace

Result<FileIdentity> identity_of(const std::string& path) {
    struct stat about{};
    if (::stat(path.c_str(), &about) != 0)
        return fail_errno(path);
    return FileIdentity{about.st_dev, about.st_ino, static_cast<uint64_t>(about.st_size),
                        int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec};
}

std::optional<std::string> why_not_forked(const SpawnOptions& options,
                                          const std::vector<std::string>& zygote_environment) {
    if (!options.inherit_fds.empty() || options.ends_with_parent)
        return "it inherits descriptors, or ends with berthd";
    const std::vector<std::string> environment = environment_of(options);
    const Variables theirs = read_early(environment), ours = read_early(zygote_environment);
    auto name = differs(theirs, ours);
    if (!name)
        name = differs(ours, theirs);
    if (name)
        return fmt::format("its environment has another {} than the zygote's, which the libraries "
                           "have read already",
                           *name);
    if (bytes_of(options.command) > zygote::kArgumentRoom)
        return fmt::format("its command of {} bytes is longer than the zygote's {}",
                           bytes_of(options.command), zygote::kArgumentRoom);
    if (bytes_of(environment) > zygote::kEnvironmentRoom)
        return fmt::format("its environment of {} bytes is longer than the zygote's {}",
                           bytes_of(environment), zygote::kEnvironmentRoom);
    return std::nullopt;
}

} // namespace berth
