// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace berth {

struct NvmlDevice {
    std::string uuid; // "GPU-...", "MIG-..."
    std::string name;
    std::string parent_uuid; // of a MIG instance: the GPU it is a part of
    std::string compute_capability;
    uint64_t total_bytes = 0;
    uint64_t used_bytes = 0;  // with what the driver keeps for itself
    bool mig_enabled = false; // a GPU cut into MIG instances takes no work itself
};

struct NvmlProcess {
    int pid = 0;
    std::optional<uint64_t> used_bytes; // nullopt where the driver does not tell
};

// The facts about GPUs that a process without a CUDA context can have: libnvidia-ml, opened at run
// time. Thread-safe, as the library is; calls may take milliseconds, so not on a decision thread.
// Absent library or driver: Unsupported from open(), with the reason.
class Nvml {
  public:
    static Result<Nvml> open();
    Nvml(Nvml&&) noexcept;
    Nvml& operator=(Nvml&&) noexcept;
    ~Nvml();

    const std::string& driver_version() const; // "580.159.03"
    const std::string& cuda_version() const;   // the newest API the driver speaks, "13.0"

    // GPUs, each followed by its MIG instances.
    Result<std::vector<NvmlDevice>> devices() const;
    Result<DeviceMemory> memory(const std::string& uuid) const;
    // Every process with memory on the device, by any user; pids of this pid namespace.
    Result<std::vector<NvmlProcess>> processes(const std::string& uuid) const;
    // Joules that a GPU has used since its driver was loaded, by the driver's own meter.
    // Unsupported where the library or the GPU has none.
    Result<double> joules(const std::string& uuid) const;

  private:
    struct Library;
    explicit Nvml(std::unique_ptr<Library> library);
    std::unique_ptr<Library> library_;
};

} // namespace berth
