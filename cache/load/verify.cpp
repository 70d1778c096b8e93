// SPDX-License-Identifier: Apache-2.0
#include "cache/load/verify.h"

#include "cache/weights/device_kernels.h"

#include <fmt/format.h>

namespace berth {

Result<std::vector<std::string>> verify(Device& device, const Manifest& manifest,
                                        std::span<const Mapping> mappings) {
    return verify_extents(device, manifest, extents_of(mappings));
}

std::vector<DeviceExtent> extents_of(std::span<const Mapping> mappings) {
    std::vector<DeviceExtent> extents;
    for (const Mapping& mapping : mappings)
        extents.push_back({mapping.data(), mapping.bytes()});
    return extents;
}

Result<std::vector<std::string>> verify_extents(Device& device, const Manifest& manifest,
                                                std::span<const DeviceExtent> segments) {
    BERTH_ASSIGN(auto kernels, DeviceKernels::create(device, 0));
    return find_different(manifest, segments, [&](std::span<const DeviceExtent> extents) {
        return kernels->hash_blocks(extents);
    });
}

Result<std::vector<std::string>> find_different(const Manifest& manifest,
                                                std::span<const DeviceExtent> segments,
                                                const BlockHasher& hash) {
    std::vector<TensorView> tensors;
    std::vector<DeviceExtent> extents;
    for (size_t index = 0; index < manifest.size(); ++index) {
        TensorView tensor = manifest.at(index);
        if (!tensor.alias_of.empty())
            continue;
        if (tensor.segment >= segments.size() ||
            segments[tensor.segment].bytes < tensor.offset + tensor.bytes)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("tensor '{}' lies outside of the {} mapped segments",
                                    tensor.name, segments.size()));
        extents.push_back({segments[tensor.segment].data + tensor.offset, tensor.bytes});
        tensors.push_back(tensor);
    }
    BERTH_ASSIGN(std::vector<uint64_t> hashes, hash(extents));
    const std::vector<Checksum> found = fold_by_extent(extents, hashes);
    std::vector<std::string> different;
    for (size_t index = 0; index < tensors.size(); ++index)
        if (found[index] != tensors[index].checksum)
            different.emplace_back(tensors[index].name);
    return different;
}

} // namespace berth
