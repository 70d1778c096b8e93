// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/nvml.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <dlfcn.h>

namespace berth {

namespace {

// The few declarations that are needed, as the library's documentation gives them: its header comes
// with the toolkit, which a machine that only runs Berth does not have.
using NvmlReturn = unsigned;
using NvmlHandle = struct NvmlOpaque*;
constexpr NvmlReturn kSuccess = 0;
constexpr NvmlReturn kNotSupported = 3;
constexpr NvmlReturn kNotFound = 6;
constexpr NvmlReturn kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;

struct MemoryInfo {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};
struct ProcessInfo {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
};

} // namespace

struct Nvml::Library {
    void* handle = nullptr;
    bool started = false;
    std::string driver_version;
    std::string cuda_version;

    NvmlReturn (*init)() = nullptr;
    NvmlReturn (*shutdown)() = nullptr;
    const char* (*error_string)(NvmlReturn) = nullptr;
    NvmlReturn (*system_driver_version)(char*, unsigned) = nullptr;
    NvmlReturn (*system_cuda_version)(int*) = nullptr;
    NvmlReturn (*device_count)(unsigned*) = nullptr;
    NvmlReturn (*device_by_index)(unsigned, NvmlHandle*) = nullptr;
    NvmlReturn (*device_by_uuid)(const char*, NvmlHandle*) = nullptr;
    NvmlReturn (*device_uuid)(NvmlHandle, char*, unsigned) = nullptr;
    NvmlReturn (*device_name)(NvmlHandle, char*, unsigned) = nullptr;
    NvmlReturn (*device_memory)(NvmlHandle, MemoryInfo*) = nullptr;
    NvmlReturn (*device_capability)(NvmlHandle, int*, int*) = nullptr;
    NvmlReturn (*compute_processes)(NvmlHandle, unsigned*, ProcessInfo*) = nullptr;
    NvmlReturn (*graphics_processes)(NvmlHandle, unsigned*, ProcessInfo*) = nullptr;
    // Absent in old drivers: no MIG then.
    NvmlReturn (*mig_mode)(NvmlHandle, unsigned*, unsigned*) = nullptr;
    NvmlReturn (*mig_count)(NvmlHandle, unsigned*) = nullptr;
    NvmlReturn (*mig_by_index)(NvmlHandle, unsigned, NvmlHandle*) = nullptr;
    NvmlReturn (*total_energy)(NvmlHandle, unsigned long long*) = nullptr; // absent likewise

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

    tl::unexpected<Error> failed(std::string_view call, NvmlReturn code) const {
        const char* text = error_string(code);
        return fail(Error{code == kNotFound ? ErrorCode::kNotFound : ErrorCode::kIo,
                          fmt::format("{}: {}", call, text != nullptr ? text : "unknown error"),
                          {},
                          static_cast<int>(code)});
    }

    Status load_functions() {
        const char* missing = nullptr;
        auto need = [&](auto& into, const char* name) {
            if (!load(into, name) && missing == nullptr)
                missing = name;
        };
        need(init, "nvmlInit_v2");
        need(shutdown, "nvmlShutdown");
        need(error_string, "nvmlErrorString");
        need(system_driver_version, "nvmlSystemGetDriverVersion");
        need(system_cuda_version, "nvmlSystemGetCudaDriverVersion_v2");
        need(device_count, "nvmlDeviceGetCount_v2");
        need(device_by_index, "nvmlDeviceGetHandleByIndex_v2");
        need(device_by_uuid, "nvmlDeviceGetHandleByUUID");
        need(device_uuid, "nvmlDeviceGetUUID");
        need(device_name, "nvmlDeviceGetName");
        need(device_memory, "nvmlDeviceGetMemoryInfo");
        need(device_capability, "nvmlDeviceGetCudaComputeCapability");
        need(compute_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
        need(graphics_processes, "nvmlDeviceGetGraphicsRunningProcesses_v3");
        load(mig_mode, "nvmlDeviceGetMigMode");
        load(mig_count, "nvmlDeviceGetMaxMigDeviceCount");
        load(mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex");
        load(total_energy, "nvmlDeviceGetTotalEnergyConsumption");
        if (missing != nullptr)
            return fail(ErrorCode::kUnsupported,
                        fmt::format("libnvidia-ml.so.1 has no {}: the driver is too old, 510 or "
                                    "newer is needed",
                                    missing),
                        "NvmlTooOld");
        return {};
    }

    Result<NvmlHandle> find(const std::string& uuid) const {
        NvmlHandle device = nullptr;
        NvmlReturn code = device_by_uuid(uuid.c_str(), &device);
        if (code != kSuccess)
            return failed(fmt::format("nvmlDeviceGetHandleByUUID({})", uuid), code);
        return device;
    }

    Result<NvmlDevice> describe(NvmlHandle device) const {
        NvmlDevice facts;
        std::array<char, 96> text{};
        NvmlReturn code = device_uuid(device, text.data(), text.size());
        if (code != kSuccess)
            return failed("nvmlDeviceGetUUID", code);
        facts.uuid = text.data();
        if (device_name(device, text.data(), text.size()) == kSuccess)
            facts.name = text.data();
        int major = 0;
        int minor = 0;
        if (device_capability(device, &major, &minor) == kSuccess)
            facts.compute_capability = fmt::format("{}.{}", major, minor);
        MemoryInfo memory{};
        code = device_memory(device, &memory);
        // Chips that share the host's memory have none of their own to report.
        if (code != kSuccess && code != kNotSupported)
            return failed(fmt::format("nvmlDeviceGetMemoryInfo({})", facts.uuid), code);
        facts.total_bytes = memory.total;
        facts.used_bytes = memory.used;
        return facts;
    }

    Status add_instances(NvmlHandle gpu, size_t gpu_at, std::vector<NvmlDevice>& into) const {
        unsigned current = 0;
        unsigned pending = 0;
        unsigned count = 0;
        if (mig_mode == nullptr || mig_count == nullptr || mig_by_index == nullptr ||
            mig_mode(gpu, &current, &pending) != kSuccess || current == 0 ||
            mig_count(gpu, &count) != kSuccess)
            return {};
        into[gpu_at].mig_enabled = true;
        for (unsigned i = 0; i < count; ++i) {
            NvmlHandle instance = nullptr;
            NvmlReturn code = mig_by_index(gpu, i, &instance);
            if (code == kNotFound)
                continue;
            if (code != kSuccess)
                return failed(fmt::format("nvmlDeviceGetMigDeviceHandleByIndex({})", i), code);
            BERTH_ASSIGN(NvmlDevice facts, describe(instance));
            facts.parent_uuid = into[gpu_at].uuid;
            if (facts.compute_capability.empty())
                facts.compute_capability = into[gpu_at].compute_capability;
            into.push_back(std::move(facts));
        }
        return {};
    }

    Status add_processes(NvmlReturn (*ask)(NvmlHandle, unsigned*, ProcessInfo*), NvmlHandle device,
                         std::vector<NvmlProcess>& into) const {
        std::vector<ProcessInfo> found(64);
        for (int attempt = 0; attempt < 5; ++attempt) {
            auto count = static_cast<unsigned>(found.size());
            NvmlReturn code = ask(device, &count, found.data());
            if (code == kNotSupported)
                return {};
            if (code == kInsufficientSize) {
                found.resize(count + size_t{64});
                continue;
            }
            if (code != kSuccess)
                return failed("nvmlDeviceGet*RunningProcesses", code);
            for (unsigned i = 0; i < count; ++i) {
                NvmlProcess process{static_cast<int>(found[i].pid), std::nullopt};
                if (found[i].used_bytes != kNotAvailable)
                    process.used_bytes = found[i].used_bytes;
                into.push_back(process);
            }
            return {};
        }
        return fail(ErrorCode::kUnavailable, "the list of processes on the device keeps growing");
    }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::Nvml(Nvml&&) noexcept = default;
Nvml& Nvml::operator=(Nvml&&) noexcept = default;
Nvml::~Nvml() = default;

const std::string& Nvml::driver_version() const {
    return library_->driver_version;
}
const std::string& Nvml::cuda_version() const {
    return library_->cuda_version;
}

Result<Nvml> Nvml::open() {
    auto library = std::make_unique<Library>();
    library->handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library->handle == nullptr) {
        const char* why = ::dlerror();
        return fail(
            ErrorCode::kUnsupported,
            fmt::format("no NVIDIA driver here: {}", why != nullptr ? why : "dlopen failed"),
            "NoNvml");
    }
    BERTH_TRY(library->load_functions());
    NvmlReturn code = library->init();
    if (code != kSuccess) {
        Error error = library->failed("nvmlInit", code).value();
        error.code = ErrorCode::kUnsupported;
        error.reason = "NoNvml";
        return fail(std::move(error));
    }
    library->started = true;
    std::array<char, 96> text{};
    if (library->system_driver_version(text.data(), text.size()) == kSuccess)
        library->driver_version = text.data();
    int version = 0;
    if (library->system_cuda_version(&version) == kSuccess)
        library->cuda_version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    return Nvml(std::move(library));
}

Result<std::vector<NvmlDevice>> Nvml::devices() const {
    unsigned count = 0;
    NvmlReturn code = library_->device_count(&count);
    if (code != kSuccess)
        return library_->failed("nvmlDeviceGetCount", code);
    std::vector<NvmlDevice> all;
    for (unsigned i = 0; i < count; ++i) {
        NvmlHandle gpu = nullptr;
        code = library_->device_by_index(i, &gpu);
        if (code != kSuccess)
            return library_->failed(fmt::format("nvmlDeviceGetHandleByIndex({})", i), code);
        BERTH_ASSIGN(NvmlDevice facts, library_->describe(gpu));
        all.push_back(std::move(facts));
        BERTH_TRY(library_->add_instances(gpu, all.size() - 1, all));
    }
    return all;
}

Result<DeviceMemory> Nvml::memory(const std::string& uuid) const {
    BERTH_ASSIGN(NvmlHandle device, library_->find(uuid));
    MemoryInfo memory{};
    NvmlReturn code = library_->device_memory(device, &memory);
    if (code != kSuccess)
        return library_->failed(fmt::format("nvmlDeviceGetMemoryInfo({})", uuid), code);
    return DeviceMemory{memory.total, memory.used};
}

Result<double> Nvml::joules(const std::string& uuid) const {
    if (library_->total_energy == nullptr)
        return fail(ErrorCode::kUnsupported, "libnvidia-ml.so.1 measures no energy: it is too old");
    BERTH_ASSIGN(NvmlHandle device, library_->find(uuid));
    unsigned long long millijoules = 0;
    if (const NvmlReturn code = library_->total_energy(device, &millijoules); code != kSuccess)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("nvmlDeviceGetTotalEnergyConsumption({}): error {}", uuid, code));
    return static_cast<double>(millijoules) / 1e3;
}

Result<std::vector<NvmlProcess>> Nvml::processes(const std::string& uuid) const {
    BERTH_ASSIGN(NvmlHandle device, library_->find(uuid));
    std::vector<NvmlProcess> all;
    BERTH_TRY(library_->add_processes(library_->compute_processes, device, all));
    // A process that computes and draws is on both lists, with the same figure.
    std::vector<NvmlProcess> drawing;
    BERTH_TRY(library_->add_processes(library_->graphics_processes, device, drawing));
    for (const NvmlProcess& process : drawing) {
        auto same = [&](const NvmlProcess& other) { return other.pid == process.pid; };
        if (std::none_of(all.begin(), all.end(), same))
            all.push_back(process);
    }
    return all;
}

} // namespace berth
