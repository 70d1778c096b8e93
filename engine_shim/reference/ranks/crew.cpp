// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/crew.h"

namespace berth::engine {

namespace {

constexpr auto kLeaveWait = std::chrono::seconds(3);

} // namespace

Result<std::unique_ptr<Crew>> Crew::meet(Options options, RankLinks::Lost lost) {
    std::unique_ptr<Crew> crew(new Crew());
    const RankSelf& self = options.self;
    BERTH_ASSIGN(crew->store_,
                 open_rank_store(options.rendezvous, self.rank, self.ranks, options.timeout));
    BERTH_ASSIGN(crew->links_,
                 RankLinks::meet(self, *crew->store_, options.timeout, std::move(lost)));
    if (self.rank == 0)
        crew->lead_ = std::make_unique<Lead>(*crew->links_);
    return crew;
}

void Crew::end() {
    if (lead_)
        lead_->end();
    // Rank 0 waits for the others to leave, and they for nobody.
    links_->close(lead_ ? Nanoseconds(kLeaveWait) : Nanoseconds(0));
}

} // namespace berth::engine
