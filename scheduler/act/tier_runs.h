// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/loader_runs.h"
#include "scheduler/act/node_context.h"
#include "scheduler/act/worker_pool.h"

#include <functional>
#include <map>
#include <set>
#include <string>

namespace berth {

// Up from the tiers below the devices, and down to them: what berth-loader is started with, and the
// files of images. A load that comes up from host memory names no checkpoint, so its files are
// looked at here first.
//
// Thread rule: the decision thread; files are looked at and removed by the workers. The
// context, the loaders and the workers outlive it.
class TierRuns {
  public:
    TierRuns(NodeContext& context, LoaderRuns& loaders, WorkerPool& workers)
        : context_(context), loaders_(loaders), workers_(workers) {}
    TierRuns(const TierRuns&) = delete;
    TierRuns& operator=(const TierRuns&) = delete;

    void load(const node::StartLoad& load);
    void copy(const node::StartCopy& copy);
    // Nothing happens for runs that are not here.
    void kill(node::LoadId id);
    // Removes the file of an image; then calls back.
    void remove_image(const node::DropWeights& drop, std::function<void()> then);

  private:
    struct ImageRun {
        Process process;
        FdWatch watch;
        std::string file;
        uint64_t bytes = 0;
    };
    Status write_image(const node::StartCopy& copy);
    void image_ended(node::LoadId id);
    void come_up(const node::StartLoad& load);
    // Posts what a run that has no process ends with.
    void not_run(node::LoadId id, Error error);
    const ResidentSet* find(const node::WeightSetId& set, const node::DeviceId& device) const;
    std::string environment_of(const node::DeviceId& device) const;

    NodeContext& context_;
    LoaderRuns& loaders_;
    WorkerPool& workers_;
    std::set<node::LoadId> looking_; // their files are being looked at
    std::map<node::LoadId, ImageRun> images_;
};

// The images on record that are there and whole; what is wrong with the others goes to the log.
std::vector<node::WeightsAdopted> find_images(const StoredState& stored);

} // namespace berth
