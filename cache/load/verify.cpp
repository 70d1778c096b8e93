// SPDX-License-Identifier: Apache-2.0
#include "cache/load/verify.h"

#include "cache/weights/checksum.h"
#include "cache/weights/device_kernels.h"

#include <fmt/format.h>

namespace berth {

Result<std::vector<std::string>> verify(Device& device, const Manifest& manifest,
                                        std::span<const Mapping> mappings) {
    std::vector<DeviceExtent> segments;
    for (const Mapping& mapping : mappings)
        segments.push_back({mapping.data(), mapping.bytes()});
    return verify_extents(device, manifest, segments);
}

Result<std::vector<std::string>> verify_extents(Device& device, const Manifest& manifest,
                                                std::span<const DeviceExtent> segments) {
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
    BERTH_ASSIGN(auto kernels, DeviceKernels::create(device, 0));
    BERTH_ASSIGN(std::vector<uint64_t> hashes, kernels->hash_blocks(extents));
    std::vector<std::string> different;
    std::span<const uint64_t> left = hashes;
    for (const TensorView& tensor : tensors) {
        uint64_t blocks = checksum_blocks(tensor.bytes);
        if (fold_hashes(left.first(blocks)) != tensor.checksum)
            different.emplace_back(tensor.name);
        left = left.subspan(blocks);
    }
    return different;
}

} // namespace berth
