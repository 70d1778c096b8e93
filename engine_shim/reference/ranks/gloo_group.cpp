// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/backend_group.h"
#include "engine_shim/reference/ranks/c10d_store.h"
#include "engine_shim/reference/ranks/process_group.h"

// torch's header has Gloo's half only where this is set; its library has it always.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace berth::engine {

namespace {

// Ranks of a node meet on the loopback interface, whatever its name resolves to.
constexpr const char* kLoopback = "127.0.0.1";

} // namespace

Result<std::unique_ptr<RankGroup>> connect_gloo(RankStore& store, const GroupPlace& place) {
    return guarded_connect("Gloo", [&]() -> std::unique_ptr<RankGroup> {
        const auto& inner = static_cast<C10dStore&>(store).store();
        auto options = c10d::ProcessGroupGloo::Options::create(
            std::chrono::duration_cast<std::chrono::milliseconds>(place.timeout));
        options->threads = 1; // one collective at a time
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(kLoopback));
        auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
            c10::make_intrusive<c10d::PrefixStore>("gloo", inner), static_cast<int>(place.rank),
            static_cast<int>(place.ranks), options);
        return std::make_unique<BackendGroup>(std::move(backend),
                                              BackendGroup::Options{.through_host = true});
    });
}

} // namespace berth::engine
