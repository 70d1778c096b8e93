// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"

#include <map>
#include <optional>
#include <string>

namespace berth::simulate {

// What is really allocated on the devices, by whom: what a driver would say. It knows nothing of
// the ledger, so that bytes that were given twice are found here. A plain value.
class DeviceAccount {
  public:
    void add_device(const node::DeviceId& device, uint64_t bytes) {
        devices_[device].total = bytes;
    }
    // From now on the owner has that much there; 0: nothing.
    void set(const node::DeviceId& device, const std::string& owner, uint64_t bytes);
    uint64_t get(const node::DeviceId& device, const std::string& owner) const;
    uint64_t used(const node::DeviceId& device) const;
    // More was asked of a device than it has: who holds what.
    const std::optional<std::string>& overfull() const { return overfull_; }
    std::string words(const node::DeviceId& device) const;

  private:
    struct Device {
        uint64_t total = 0;
        uint64_t used = 0;
        std::map<std::string, uint64_t> owners;
    };
    std::map<node::DeviceId, Device> devices_;
    std::optional<std::string> overfull_;
};

} // namespace berth::simulate
