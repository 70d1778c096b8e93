// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/backend_group.h"
#include "engine_shim/reference/ranks/c10d_store.h"
#include "engine_shim/reference/ranks/process_group.h"

// torch's header has NCCL's half only where this is set.
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <new>

#include <dlfcn.h>

namespace berth::engine {

namespace {

using c10d::ProcessGroupNCCL;
using StorePointer = c10::intrusive_ptr<c10d::Store>;
using OptionsPointer = c10::intrusive_ptr<ProcessGroupNCCL::Options>;

// This program is not linked with libtorch_cuda, which it opens when it is on a GPU: the two
// constructors are looked up by their names there. Both take what they take by the C++ ABI, the
// object's address first.
constexpr const char* kMakeOptions = "_ZN4c10d16ProcessGroupNCCL7OptionsC1Eb";
constexpr const char* kMakeGroup =
    "_ZN4c10d16ProcessGroupNCCLC1EN3c1013intrusive_ptrINS_5StoreENS1_6detail34intrusive_target_"
    "default_null_typeIS3_EEEEiiNS2_INS0_7OptionsENS5_IS8_EEEE";
using MakeOptions = void (*)(void* at, bool high_priority);
using MakeGroup = void (*)(void* at, StorePointer store, int rank, int size,
                           OptionsPointer options);

// A GPU's answer to the others' wish is waited for, so it is asked for more rarely.
constexpr uint32_t kLayersBetweenLooks = 4;

template <typename Function>
Function look_up(const char* name) {
    void* found = ::dlsym(RTLD_DEFAULT, name);
    TORCH_CHECK(found != nullptr, "torch's CUDA half has no ProcessGroupNCCL of version 2.11");
    return reinterpret_cast<Function>(found);
}

// An object made in memory that its class frees itself when the last pointer goes.
template <typename T, typename Make>
c10::intrusive_ptr<T> make_at(Make&& make) {
    void* memory = ::operator new(sizeof(T));
    try {
        make(memory);
    } catch (...) {
        ::operator delete(memory);
        throw;
    }
    return c10::intrusive_ptr<T>::unsafe_steal_from_new(static_cast<T*>(memory));
}

} // namespace

Result<std::unique_ptr<RankGroup>> connect_nccl(RankStore& store, const GroupPlace& place,
                                                at::Device device) {
    // NCCL's own buffers are no part of the grant: they are measured as this process's overhead.
    return guarded_connect("NCCL", [&]() -> std::unique_ptr<RankGroup> {
        const auto options = make_at<ProcessGroupNCCL::Options>(
            [&](void* at) { look_up<MakeOptions>(kMakeOptions)(at, false); });
        options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(place.timeout);
        const StorePointer prefixed =
            c10::make_intrusive<c10d::PrefixStore>("nccl", static_cast<C10dStore&>(store).store());
        auto group = make_at<ProcessGroupNCCL>([&](void* at) {
            look_up<MakeGroup>(kMakeGroup)(at, prefixed, static_cast<int>(place.rank),
                                           static_cast<int>(place.ranks), options);
        });
        c10::intrusive_ptr<c10d::Backend> backend = std::move(group);
        backend->setBoundDeviceId(device);
        backend->eagerConnectSingleDevice(device); // its seconds belong to the start
        return std::make_unique<BackendGroup>(
            std::move(backend), BackendGroup::Options{.layers_between_looks = kLayersBetweenLooks});
    });
}

} // namespace berth::engine
