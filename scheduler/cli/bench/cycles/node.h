// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/cycles/options.h"
#include "scheduler/cli/bench/cycles/plan.h"
#include "scheduler/cli/bench/own_node.h"

#include <memory>
#include <string>

namespace berth::cli::bench {

// One preemption and its end.
struct CycleTimes {
    double preempt_ms = 0; // from the request until the operation's end was known here
    double resume_ms = 0;  // from the request until the instance runs
    uint64_t bytes_freed = 0;
    uint64_t bytes_saved = 0, bytes_moved = 0; // of KV: to host memory, within the grant
    // By the driver's figure as much was free after the preemption as berthd says there is for
    // others, these bytes among it.
    bool bytes_back = true;
    bool grant_back = true; // it has the grant that it had
};

// The node under `berth bench cycles`: an online and a batch engine on one weight set. Blocks; one
// thread.
class CyclesNode {
  public:
    static constexpr const char* kOnline = "chat";
    static constexpr const char* kBatch = "nightly";

    // Both run when it returns; batch reads `batch_lines` lines of these prompts.
    static Result<std::unique_ptr<CyclesNode>> start(const CyclesOptions& options,
                                                     const std::vector<std::string>& prompts,
                                                     size_t batch_lines);

    Result<std::string> online_endpoint() const;
    Status pause_batch();
    Status resume_batch();
    Result<CycleTimes> cycle(const Cycle& one);
    // Milliseconds until all is as before.
    Result<double> suffer(FaultKind kind);
    const std::string& batch_output() const { return batch_output_; }
    std::string device() const { return device_; }
    struct DeviceBytes {
        uint64_t total = 0;
        uint64_t used = 0;     // by the driver, or the kernel
        uint64_t promised = 0; // free by berthd's ledger
    };
    Result<DeviceBytes> device_bytes() const;
    void copy_results(const std::string& to) const;

  private:
    CyclesNode() = default;
    std::string documents(const CyclesOptions& options) const;
    Result<json::object> preempt(const std::string& mode, uint64_t grant_bytes);
    // Of the instance's process, which it returns.
    Result<ProcessId> signal(const char* instance, int number) const;
    Status kill_and_wait(const char* instance) const;
    Status wait_connected() const;
    Result<double> batch_stuck();
    Result<double> grant_refused();
    Result<bool> resume_is_refused(const json::object& parked);

    std::unique_ptr<OwnNode> node_;
    std::string model_, programs_, batch_input_, batch_output_, device_;
};

} // namespace berth::cli::bench
