// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/energy.h"

#include <fmt/format.h>

#include <dlfcn.h>

namespace berth::cli::bench {

namespace {

using NvmlReturn = unsigned;
using NvmlHandle = struct NvmlOpaque*;
constexpr NvmlReturn kSuccess = 0;

} // namespace

struct EnergyMeter::Library {
    void* handle = nullptr;
    bool started = false;
    NvmlHandle device = nullptr;
    NvmlReturn (*init)() = nullptr;
    NvmlReturn (*shutdown)() = nullptr;
    NvmlReturn (*device_by_uuid)(const char*, NvmlHandle*) = nullptr;
    NvmlReturn (*total_energy)(NvmlHandle, unsigned long long*) = nullptr;

    Library() = default;
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;
    ~Library() {
        if (started)
            shutdown();
        if (handle != nullptr)
            ::dlclose(handle);
    }

    template <typename Function>
    bool load(Function& into, const char* name) {
        into = reinterpret_cast<Function>(::dlsym(handle, name));
        return into != nullptr;
    }
};

EnergyMeter::EnergyMeter(std::unique_ptr<Library> library) : library_(std::move(library)) {}
EnergyMeter::EnergyMeter(EnergyMeter&&) noexcept = default;
EnergyMeter& EnergyMeter::operator=(EnergyMeter&&) noexcept = default;
EnergyMeter::~EnergyMeter() = default;

Result<EnergyMeter> EnergyMeter::open(const std::string& uuid) {
    auto library = std::make_unique<Library>();
    library->handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library->handle == nullptr)
        return fail(ErrorCode::kUnsupported, "libnvidia-ml.so.1 is not here");
    if (!library->load(library->init, "nvmlInit_v2") ||
        !library->load(library->shutdown, "nvmlShutdown") ||
        !library->load(library->device_by_uuid, "nvmlDeviceGetHandleByUUID") ||
        !library->load(library->total_energy, "nvmlDeviceGetTotalEnergyConsumption"))
        return fail(ErrorCode::kUnsupported, "libnvidia-ml.so.1 measures no energy: it is too old");
    if (const NvmlReturn code = library->init(); code != kSuccess)
        return fail(ErrorCode::kUnsupported, fmt::format("nvmlInit: error {}", code));
    library->started = true;
    if (const NvmlReturn code = library->device_by_uuid(uuid.c_str(), &library->device);
        code != kSuccess)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("nvmlDeviceGetHandleByUUID({}): error {}", uuid, code));
    EnergyMeter meter(std::move(library));
    BERTH_TRY(meter.joules());
    return meter;
}

Result<double> EnergyMeter::joules() const {
    unsigned long long millijoules = 0;
    if (const NvmlReturn code = library_->total_energy(library_->device, &millijoules);
        code != kSuccess)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("nvmlDeviceGetTotalEnergyConsumption: error {}", code));
    return static_cast<double>(millijoules) / 1e3;
}

} // namespace berth::cli::bench
