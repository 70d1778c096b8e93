// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/client.h"
#include "engine_shim/reference/main/assembly.h"
#include "engine_shim/reference/main/options.h"
#include "engine_shim/reference/ranks/crew.h"

#include <memory>

// What the program does where its model is shared by several processes.
namespace berth::engine {

// A rank is gone, and this one with it: an instance lives with all its ranks or with none.
inline constexpr int kExitRankLost = 3;

// What torch's and NCCL's libraries read before they start. Before any other thread is there.
void prepare_environment(const Options& options);

// Waits until all ranks are there. From then on the end of any of them ends this process. Nothing
// when the options name one rank alone; `client` outlives it.
Result<std::unique_ptr<Crew>> meet_ranks(const Options& options, const std::string& device,
                                         Client& client);

// The life of every rank but the first, from Ready on. SIGTERM and SIGINT ask rank 0 to end the
// instance.
Status follow_rank0(Assembly& assembly, EngineHost& host, Client& client);

} // namespace berth::engine
