// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/state_copies.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;

// Through host memory: a device has no copy from itself to itself.
Status copy(Device& device, std::byte* to, const std::byte* from, uint64_t bytes) {
    if (device.capabilities().cpu_addressable)
        return device.copy_to_device(to, from, bytes);
    BERTH_ASSIGN(HostBuffer buffer,
                 device.create_host_buffer(std::min<uint64_t>(bytes, kPieceBytes)));
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = std::min<uint64_t>(kPieceBytes, bytes - done);
        BERTH_TRY(device.copy_to_host(buffer.mapping.data(), from + done, piece));
        BERTH_TRY(device.copy_to_device(to + done, buffer.mapping.data(), piece));
        done += piece;
    }
    return {};
}

} // namespace

Result<std::unique_ptr<StateCopies>> StateCopies::make(Device& device, const WeightSet& weights) {
    auto copies = std::unique_ptr<StateCopies>(new StateCopies());
    const std::vector<Segment>& templates = weights.templates();
    std::vector<std::byte*> bases(templates.size(), nullptr);
    for (size_t i = 0; i < templates.size(); ++i) {
        if (!templates[i].fd)
            continue;
        BERTH_ASSIGN(auto segment, device.create_segment(templates[i].bytes, "berth-state"));
        // Mapped for the copy alone.
        BERTH_ASSIGN(Mapping source, device.map_read_only(templates[i]));
        BERTH_TRY(copy(device, segment->data(), source.data(), templates[i].bytes));
        bases[i] = segment->data();
        copies->segments_.push_back(std::move(segment));
    }
    const Manifest& manifest = weights.manifest();
    for (size_t i = 0; manifest.has_states() && i < manifest.size(); ++i) {
        TensorView tensor = manifest.at(i);
        if (tensor.kind == TensorKind::kState)
            copies->addresses_.emplace(std::string(tensor.name),
                                       bases[tensor.segment] + tensor.first_byte());
    }
    return copies;
}

std::byte* StateCopies::address(std::string_view name) const {
    auto found = addresses_.find(name);
    return found == addresses_.end() ? nullptr : found->second;
}

uint64_t StateCopies::bytes() const {
    uint64_t sum = 0;
    for (const auto& segment : segments_)
        sum += segment->bytes();
    return sum;
}

} // namespace berth
