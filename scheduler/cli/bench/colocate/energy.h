// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <memory>
#include <string>

namespace berth::cli::bench {

// What a GPU has used since its driver was loaded, by the driver's own meter (NVML, opened at run
// time). One thread.
class EnergyMeter {
  public:
    // Unsupported, with the reason, where there is no driver or the GPU has no meter.
    static Result<EnergyMeter> open(const std::string& uuid);
    EnergyMeter(EnergyMeter&&) noexcept;
    EnergyMeter& operator=(EnergyMeter&&) noexcept;
    ~EnergyMeter();

    Result<double> joules() const;

  private:
    struct Library;
    explicit EnergyMeter(std::unique_ptr<Library> library);
    std::unique_ptr<Library> library_;
};

} // namespace berth::cli::bench
