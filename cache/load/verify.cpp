// SPDX-License-Identifier: Apache-2.0
#include "cache/load/verify.h"

#include "cache/weights/checksum.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20; // a multiple of kChecksumBlockBytes

Result<Checksum> checksum_on_device(Device& device, const std::byte* from, uint64_t bytes,
                                    const HostBuffer& buffer) {
    std::vector<uint64_t> hashes(checksum_blocks(bytes));
    for (uint64_t done = 0; done < bytes; done += kPieceBytes) {
        uint64_t piece = std::min(kPieceBytes, bytes - done);
        BERTH_TRY(device.copy_to_host(buffer.mapping.data(), from + done, piece));
        hash_blocks({buffer.mapping.data(), piece},
                    std::span(hashes).subspan(done / kChecksumBlockBytes, checksum_blocks(piece)));
    }
    return fold_hashes(hashes);
}

} // namespace

Result<std::vector<std::string>> verify(Device& device, const Manifest& manifest,
                                        std::span<const Mapping> mappings) {
    bool in_place = device.capabilities().cpu_addressable;
    HostBuffer buffer;
    if (!in_place) {
        BERTH_ASSIGN(buffer, device.create_host_buffer(kPieceBytes));
    }
    std::vector<std::string> different;
    for (size_t index = 0; index < manifest.size(); ++index) {
        TensorView tensor = manifest.at(index);
        if (!tensor.alias_of.empty())
            continue;
        if (tensor.segment >= mappings.size() ||
            mappings[tensor.segment].bytes() < tensor.offset + tensor.bytes)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("tensor '{}' lies outside of the {} mapped segments",
                                    tensor.name, mappings.size()));
        const std::byte* from = mappings[tensor.segment].data() + tensor.offset;
        Checksum found;
        if (in_place)
            found = checksum_of({from, tensor.bytes});
        else {
            BERTH_ASSIGN(found, checksum_on_device(device, from, tensor.bytes, buffer));
        }
        if (found != tensor.checksum)
            different.emplace_back(tensor.name);
    }
    return different;
}

} // namespace berth
