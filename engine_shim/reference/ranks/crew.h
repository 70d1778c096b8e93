// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/ranks/lead.h"
#include "engine_shim/reference/ranks/rank_links.h"
#include "engine_shim/reference/ranks/rank_store.h"

#include <memory>

namespace berth::engine {

// All ranks of an instance as this process knows them: the store where they met, the connections,
// and on rank 0 the hand on the others. It outlives all that computes with them.
class Crew {
  public:
    struct Options {
        RankSelf self;
        std::string rendezvous;
        Nanoseconds timeout = std::chrono::minutes(5); // until all processes have started
    };
    // Blocks until all ranks are there. `lost` is called on another thread; what it does is best to
    // end the process, since the others may wait in a collective.
    static Result<std::unique_ptr<Crew>> meet(Options options, RankLinks::Lost lost);

    RankLinks& links() { return *links_; }
    RankStore& store() { return *store_; }
    Lead* lead() { return lead_.get(); } // null on all ranks but the first
    // The instance ends well. Rank 0 ends the others.
    void end();

  private:
    Crew() = default;
    std::unique_ptr<RankStore> store_;
    std::unique_ptr<RankLinks> links_;
    std::unique_ptr<Lead> lead_;
};

} // namespace berth::engine
