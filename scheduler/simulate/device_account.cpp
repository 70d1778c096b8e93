// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/device_account.h"

#include "base/units.h"

namespace berth::simulate {

void DeviceAccount::set(const node::DeviceId& device, const std::string& owner, uint64_t bytes) {
    const auto found = devices_.find(device);
    if (found == devices_.end())
        return; // a tier
    Device& on = found->second;
    uint64_t& has = on.owners[owner];
    const bool more = bytes > has;
    on.used += bytes;
    on.used -= has;
    has = bytes;
    if (more && on.used > on.total && !overfull_)
        overfull_ = device.value + " has " + format_bytes(on.total) + ", and " +
                    format_bytes(on.used) + " are asked of it: " + words(device) +
                    "; the last by " + owner;
    if (bytes == 0)
        on.owners.erase(owner);
}

uint64_t DeviceAccount::get(const node::DeviceId& device, const std::string& owner) const {
    const auto found = devices_.find(device);
    if (found == devices_.end())
        return 0;
    const auto has = found->second.owners.find(owner);
    return has == found->second.owners.end() ? 0 : has->second;
}

uint64_t DeviceAccount::used(const node::DeviceId& device) const {
    const auto found = devices_.find(device);
    return found == devices_.end() ? 0 : found->second.used;
}

std::string DeviceAccount::words(const node::DeviceId& device) const {
    std::string text;
    if (const auto found = devices_.find(device); found != devices_.end())
        for (const auto& [owner, bytes] : found->second.owners)
            text += (text.empty() ? "" : ", ") + owner + " " + format_bytes(bytes);
    return text.empty() ? "nothing" : text;
}

} // namespace berth::simulate
