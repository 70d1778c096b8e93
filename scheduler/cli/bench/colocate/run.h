// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/nvml.h"
#include "scheduler/cli/bench/colocate/batch_work.h"
#include "scheduler/cli/bench/colocate/calibrate.h"
#include "scheduler/cli/bench/colocate/node.h"
#include "scheduler/cli/bench/colocate/report.h"

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace berth::cli::bench {

// One run of the bench: a node, the load found for it, then phase after phase with the same
// requests at the same moments. A phase that fails is reported and the next one tried. Blocks; one
// thread.
class ColocateRun {
  public:
    ColocateRun(ColocateOptions options, Report report);
    ColocateRun(const ColocateRun&) = delete;
    ColocateRun& operator=(const ColocateRun&) = delete;
    ~ColocateRun();

    Status run();

  private:
    Status prepare();
    Status find_load();
    PhaseResult run_phase(const PhasePlan& plan);
    LoopPlan online_loop(size_t requests) const; // the first so many
    Status measure(PhaseResult& result);
    // Why it cannot be run, or "".
    std::string reason_to_skip(const PhasePlan& plan) const;
    Status have_node_for(const PhasePlan& plan);
    void close_node();
    Baseline baseline() const;
    Status rehearse();
    const PhaseResult* alone_again_on(size_t node) const; // null: none is there
    Status compare_again();
    Status finish();
    json::object set_up_line() const;

    ColocateOptions options_;
    Report report_;
    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
    std::vector<PhasePlan> phases_;
    Arrivals unscaled_;
    Asked asked_;
    std::unique_ptr<ColocateNode> node_;
    std::string node_compute_;   // what its engines were started under
    size_t nodes_ = 0;           // that were started
    BatchAnswers batch_answers_; // of those that were closed
    std::string batch_unread_;   // why some of them could not be read
    std::optional<Nvml> energy_;
    std::string no_energy_;
    EnginePace pace_;
    Scaled load_;
    std::vector<PhaseResult> results_;
    size_t failed_ = 0;
};

} // namespace berth::cli::bench
