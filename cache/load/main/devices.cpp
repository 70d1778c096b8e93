// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/devices.h"

#include "cache/load/phase_clock.h"
#include "engine_shim/protocol/messages.h"

#include <fmt/format.h>

#include <map>

namespace berth {

namespace {

WeightEnvironment environment_of(const Device& device) {
    WeightEnvironment environment;
    environment.device_kind = to_string(device.capabilities().kind);
    environment.compute_capability = device.capabilities().compute_capability;
    environment.cuda_version = device.capabilities().driver_version;
    return environment;
}

} // namespace

Result<Device*> LateDevice::open() {
    if (!device_) {
        PhaseClock clock;
        BERTH_ASSIGN(device_, open_device(id_));
        opening_ms_ = clock.lap();
    }
    return device_.get();
}

Result<OtherDevices> OtherDevices::open(const LoaderOptions& options, Device& first,
                                        std::vector<Device*>& by_rank) {
    OtherDevices others;
    std::map<std::string, Device*> known = {{options.device, &first}};
    for (const std::string& id : options.devices) {
        if (!known.contains(id)) {
            BERTH_ASSIGN(std::unique_ptr<Device> opened, open_device(id));
            known[id] = opened.get();
            others.devices_.push_back(std::move(opened));
        }
        by_rank.push_back(known[id]);
    }
    return others;
}

Result<WeightEnvironment> find_environment(const LoaderOptions& options, LateDevice& device) {
    if (!options.environment_json) {
        if (options.check && device.kind() == DeviceKind::kHost)
            return WeightEnvironment{"host", "", "", "any"};
        BERTH_ASSIGN(Device * opened, device.open());
        return environment_of(*opened);
    }
    BERTH_ASSIGN(protocol::Environment given,
                 protocol::environment_from_json(*options.environment_json));
    if (!given.layout.empty() && given.layout != kLayoutTag)
        return fail(
            ErrorCode::kMismatch,
            fmt::format("layout '{}' is wanted, this loader makes '{}'", given.layout, kLayoutTag),
            "LayoutMismatch");
    WeightEnvironment environment;
    environment.device_kind =
        given.device_kind.empty() ? std::string(to_string(device.kind())) : given.device_kind;
    environment.compute_capability = given.compute_capability;
    environment.cuda_version = given.cuda_version;
    if (!given.torch_version.empty())
        environment.torch_version = given.torch_version;
    return environment;
}

Status check_environment(const WeightEnvironment& given, const Device& device) {
    WeightEnvironment real = environment_of(device);
    auto differs = [](const std::string& wanted, const std::string& is) {
        return !wanted.empty() && wanted != is;
    };
    if (differs(given.device_kind, real.device_kind))
        return fail(ErrorCode::kMismatch,
                    fmt::format("device kind '{}' is wanted, {} is '{}'", given.device_kind,
                                device.id(), real.device_kind),
                    "EnvironmentMismatch");
    if (differs(given.compute_capability, real.compute_capability))
        return fail(ErrorCode::kMismatch,
                    fmt::format("compute capability '{}' is wanted, {} has '{}'",
                                given.compute_capability, device.id(), real.compute_capability),
                    "EnvironmentMismatch");
    return {};
}

Result<std::string> wanted_layout(const LoaderOptions& options) {
    if (!options.environment_json)
        return std::string(kLayoutTag);
    BERTH_ASSIGN(protocol::Environment given,
                 protocol::environment_from_json(*options.environment_json));
    return given.layout.empty() ? std::string(kLayoutTag) : given.layout;
}

} // namespace berth
