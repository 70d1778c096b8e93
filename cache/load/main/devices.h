// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/main/options.h"
#include "cache/memory/device.h"

#include <memory>
#include <string>
#include <vector>

namespace berth {

// The device, opened as late as can be: a GPU's context takes memory that berthd grants first.
class LateDevice {
  public:
    explicit LateDevice(std::string id) : id_(std::move(id)) {}

    DeviceKind kind() const {
        return id_.starts_with("host-") ? DeviceKind::kHost : DeviceKind::kCuda;
    }
    Result<Device*> open();
    // What open() took, whenever it was first called.
    double opening_ms() const { return opening_ms_; }

  private:
    std::string id_;
    std::unique_ptr<Device> device_;
    double opening_ms_ = 0;
};

// The further devices of a load for several ranks, each opened once.
class OtherDevices {
  public:
    // `by_rank` gets one for each rank; `first` is the one that is open already.
    static Result<OtherDevices> open(const LoaderOptions& options, Device& first,
                                     std::vector<Device*>& by_rank);

  private:
    std::vector<std::unique_ptr<Device>> devices_;
};

// What the set is made for: as given, else as the device is. Only the latter opens the device.
Result<WeightEnvironment> find_environment(const LoaderOptions& options, LateDevice& device);
// An environment that was given must be the device's: it says for which device the set may be used.
Status check_environment(const WeightEnvironment& given, const Device& device);
// The layout that the environment asks for; this loader's own where it asks for none.
Result<std::string> wanted_layout(const LoaderOptions& options);

} // namespace berth
