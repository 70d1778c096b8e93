// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/several_ranks.h"

#include "base/log.h"

#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

namespace berth::engine {

namespace {

std::atomic<Follower*> signalled{nullptr};

void on_signal(int) {
    if (Follower* follower = signalled.load(); follower != nullptr)
        follower->ask_end();
}

// Ranks that differ here would compute other things in the same collectives.
std::string alike(const Options& options, const Client& client) {
    const std::string& model = client.welcome().model_path;
    return fmt::format("model {}, block-tokens {}, max-batch {}, prefill-chunk {}, dtype {}{}",
                       model.empty() ? options.model : model, options.block_tokens,
                       options.max_batch, options.prefill_chunk, options.dtype,
                       options.batch_invariant ? ", batch-invariant" : "");
}

} // namespace

void prepare_environment(const Options& options) {
    if (options.ranks == 1)
        return;
    // The arena is unmapped and mapped again under graphs and under NCCL: buffers that NCCL had
    // registered there would be stale. A launcher sets it for engines of any kind; this is for a
    // start by hand.
    ::setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/1);
    // torch would note each collective for a debugger.
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
}

Result<std::unique_ptr<Crew>> meet_ranks(const Options& options, const std::string& device,
                                         Client& client) {
    if (options.ranks == 1)
        return nullptr;
    Crew::Options made;
    made.self = {options.rank, options.ranks, alike(options, client),
                 device.empty() ? client.welcome().device : device};
    made.rendezvous = options.rendezvous;
    return Crew::meet(std::move(made), [&client](uint32_t rank, const std::string& why) {
        const std::string words =
            fmt::format("rank {} is gone: {}; an instance lives with all its ranks or with none, "
                        "so this one ends too",
                        rank, why);
        log::error("reason=RankLost {}", words);
        client.set_state(protocol::EngineState::kFailed, {}, "RankLost", words);
        // The engine's thread may wait in a collective for a rank that does not come.
        std::_Exit(kExitRankLost);
    });
}

Status follow_rank0(Assembly& assembly, EngineHost& host, Client& client) {
    const auto follower = assembly.follower(host);
    // Before, a gate that stays closed would hold rank 0's start up here for longer than there.
    follower->on_loop([&] { assembly.set_wish([&host] { return host.must_yield(); }); });
    signalled = follower.get();
    (void)std::signal(SIGTERM, on_signal);
    (void)std::signal(SIGINT, on_signal);
    client.set_state(protocol::EngineState::kReady, {});
    const Status ran = follower->run();
    signalled = nullptr;
    return ran;
}

} // namespace berth::engine
