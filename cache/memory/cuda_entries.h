// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cuda.h>
#include <fmt/format.h>

#include <dlfcn.h>

namespace berth {

// Functions of the NVIDIA driver, fetched by name at run time, at the interface of 12.0: what the
// declarations that are used here stand for (later versions of some take other arguments). The
// library stays open for the life of the process: its threads and exit handlers need it.
class CudaEntries {
  public:
    // Unsupported, NoCudaDriver or CudaDriverTooOld.
    static Result<CudaEntries> open() {
        void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        if (library == nullptr) {
            const char* why = ::dlerror();
            return fail(
                ErrorCode::kUnsupported,
                fmt::format("no NVIDIA driver here: {}", why != nullptr ? why : "dlopen failed"),
                "NoCudaDriver");
        }
        CudaEntries entries;
        entries.get_ = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
        if (entries.get_ == nullptr)
            return fail(ErrorCode::kUnsupported,
                        "the NVIDIA driver is too old: 525 (CUDA 12.0) or newer is needed",
                        "CudaDriverTooOld");
        return entries;
    }

    template <typename Function>
    void need(Function& into, const char* name) {
        void* found = nullptr;
        CUdriverProcAddressQueryResult why{};
        if (get_(name, &found, kInterfaceVersion, CU_GET_PROC_ADDRESS_DEFAULT, &why) ==
            CUDA_SUCCESS)
            into = reinterpret_cast<Function>(found);
        if (into == nullptr && missing_ == nullptr)
            missing_ = name;
    }
    // Of a later interface; stays null where the driver does not have it.
    template <typename Function>
    void want(Function& into, const char* name, int version) {
        void* found = nullptr;
        CUdriverProcAddressQueryResult why{};
        if (get_(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &why) == CUDA_SUCCESS)
            into = reinterpret_cast<Function>(found);
    }
    // The first that was needed and is not there; nullptr: none.
    const char* missing() const { return missing_; }

  private:
    static constexpr int kInterfaceVersion = 12000;
    using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult*);
    CudaEntries() = default;

    GetProcAddress get_ = nullptr;
    const char* missing_ = nullptr;
};

} // namespace berth
