// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/colocate/http_wire.h"
#include "scheduler/cli/bench/colocate/options.h"
#include "scheduler/cli/bench/colocate/phases.h"
#include "scheduler/cli/bench/own_node.h"

#include <memory>
#include <string>

namespace berth::cli::bench {

// Milliseconds; 0: none.
struct LatencyTargets {
    double ttft_ms = 0;
    double tpot_ms = 0;
};

// The node under the bench: an online engine and a batch engine on one weight set, and the rules
// between them, which change while both run. Blocks; one thread.
class ColocateNode {
  public:
    static constexpr const char* kOnline = "chat";
    static constexpr const char* kBatch = "nightly";

    // Both engines run when it returns, under the rules of that phase.
    static Result<std::unique_ptr<ColocateNode>> start(const ColocateOptions& options,
                                                       const PhasePlan& rules);

    // The rules of a phase hold for both engines from here on, and batch runs or is paused as the
    // phase wants it. FailedPrecondition where an engine had to start again for it.
    Status enter(const PhasePlan& phase, const LatencyTargets& targets);

    const Endpoint& online() const { return online_; }
    const Endpoint& batch() const { return batch_; }
    const std::string& device() const { return device_; }
    uint32_t context_tokens_max() const { return context_tokens_max_; }
    // Fails when an engine has been started again since start().
    Status check_engines() const;
    Status check_mps() const; // that the node has it, and does not share by its gates instead
    // What preemptions of both engines have done since the node began.
    struct Preempted {
        uint64_t count = 0, bytes_freed = 0, bytes_saved = 0, bytes_moved = 0;
    };
    Result<Preempted> preempted() const;
    const std::string& batch_output() const { return batch_output_; }
    // Of berthd and its engines, into the folder.
    void copy_logs(const std::string& to) const;

  private:
    ColocateNode() = default;
    std::string documents(const PhasePlan& phase, const LatencyTargets& targets) const;
    Status find_engines();

    ColocateOptions options_;
    std::unique_ptr<OwnNode> node_;
    std::string folder_, programs_, batch_input_, batch_output_, device_;
    Endpoint online_, batch_;
    uint64_t online_pid_ = 0, batch_pid_ = 0;
    uint32_t context_tokens_max_ = 0;
    bool batch_paused_ = false;
};

// Whether this build's policies know the rules; why not, if they do not.
Status check_rules(const PhasePlan& phase);

} // namespace berth::cli::bench
