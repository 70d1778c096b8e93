// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/client.h"
#include "engine_shim/reference/main/engine.h"
#include "engine_shim/reference/main/options.h"
#include "engine_shim/reference/ranks/crew.h"
#include "engine_shim/reference/ranks/follower.h"

#include <functional>
#include <memory>

namespace berth::engine {

// Told how long each phase of the start took.
using PhaseCallback = std::function<void(const std::string& name, double milliseconds)>;

// What an engine is made of, in the order of its making: the mapped weights as tensors, KV memory
// within the grant, the runner, the scheduler. Used by the engine's thread; `client` outlives it.
class Assembly {
  public:
    // `weights` are attached. Prepares torch (threads; on a GPU its libraries, and an allocator
    // that keeps to the grant's work space). Ends with one verified step. Phases: "tensors",
    // "warmup". With a crew (which outlives it; null: alone) all ranks make theirs together, phase
    // "connect ranks"; those that follow end without the step, which is rank 0's to make.
    static Result<std::unique_ptr<Assembly>> make(const Options& options, Client& client,
                                                  WeightSet weights, const PhaseCallback& phase,
                                                  Crew* crew = nullptr);
    Assembly(const Assembly&) = delete;
    Assembly& operator=(const Assembly&) = delete;
    ~Assembly();

    const EngineSettings& settings() const;
    Engine::Parts parts(EngineHost& host);
    const WeightSet& weights() const;
    // What this engine makes of the set's canary: its input is a JSON array of token ids; greedy
    // decoding gives 16 more, and the digest is the SHA-256 of these as a JSON array without
    // spaces. Before the engine runs.
    Result<std::string> canary_digest();

    // Of several ranks. What stands between layers when others wish to: on every rank, before it
    // runs. And the loop of those that follow, which have neither scheduler nor parts().
    void set_wish(std::function<bool()> wish);
    std::unique_ptr<Follower> follower(EngineHost& host);

  private:
    Assembly();
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace berth::engine
