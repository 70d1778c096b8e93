// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/image_folder.h"
#include "scheduler/act/loader_runs.h"
#include "scheduler/act/node_context.h"
#include "scheduler/act/workers.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace berth {

// Up from the tiers below the devices, and down to them: what berth-loader is started with, and the
// files of images. A load that comes up from host memory names no checkpoint, so its files are
// looked at here first.
//
// An image is in a record from the moment that its writer's success is told. Writers end with this
// process, and what one leaves without having told (a beginning, or an image that came too late)
// is removed: when a policy names the folder, before the next image is written, and when a writer
// has ended without an image on record.
//
// Thread rule: the decision thread; files are looked at and removed by the workers, images in the
// order of the calls (there is one thread of them). The context, the loaders and the workers
// outlive it.
class TierRuns {
  public:
    TierRuns(NodeContext& context, LoaderRuns& loaders, Workers& workers)
        : context_(context), loaders_(loaders), workers_(workers) {}
    TierRuns(const TierRuns&) = delete;
    TierRuns& operator=(const TierRuns&) = delete;

    void load(const node::StartLoad& load);
    void copy(const node::StartCopy& copy);
    // Nothing happens for runs that are not here.
    void kill(node::LoadId id);
    // Removes the file of an image; then calls back. One that is not there is as good as removed.
    void remove_image(const node::DropWeights& drop, std::function<void(const Status&)> then);
    void tidy(const node::TidyImages& tidy);
    // A file that a record names though it could not be looked at is left alone.
    void leave_alone(std::string file) { left_alone_.insert(std::move(file)); }

  private:
    struct ImageRun {
        Process process;
        FdWatch watch;
        node::WeightSetId set;
        std::string file;
        uint64_t bytes = 0;
    };
    void prepare_image(const node::StartCopy& copy);
    Status write_image(const node::StartCopy& copy);
    std::set<std::string> kept_images(node::LoadId but = {}) const;
    void report(const Tidied& tidied);
    void image_ended(node::LoadId id);
    void come_up(const node::StartLoad& load);
    // Posts what a run that has no process ends with.
    void not_run(node::LoadId id, Error error);
    const ResidentSet* find(const node::WeightSetId& set, const node::DeviceId& device) const;
    std::string environment_of(const node::DeviceId& device) const;

    NodeContext& context_;
    LoaderRuns& loaders_;
    Workers& workers_;
    std::set<node::LoadId> looking_; // their files are being looked at
    std::shared_ptr<ImageFolder> folder_ = std::make_shared<ImageFolder>(); // the workers' too
    std::set<std::string> left_alone_;
    std::map<node::LoadId, ImageRun> images_;
};

// The images on record that are there and whole; what is wrong with the others goes to the log.
struct FoundImages {
    std::vector<node::WeightsAdopted> whole;
    std::vector<std::string> unseen; // files that could not be looked at: nothing is known of them
};
FoundImages find_images(const StoredState& stored);

} // namespace berth
