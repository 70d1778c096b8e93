// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/units.h"

#include <memory>
#include <string>

namespace berth::engine {

// A few names and texts that the processes of one start share. Any thread; get() blocks.
class RankStore {
  public:
    RankStore() = default;
    RankStore(const RankStore&) = delete;
    RankStore& operator=(const RankStore&) = delete;
    virtual ~RankStore() = default;
    virtual Status set(const std::string& name, const std::string& text) = 0;
    // Waits until it is there; DeadlineExceeded.
    virtual Result<std::string> get(const std::string& name, Nanoseconds timeout) = 0;
};

// `rendezvous`: "file:///PATH", a file that no earlier start has used, in a folder that is there;
// or "tcp://HOST:PORT", where rank 0 listens.
Result<std::unique_ptr<RankStore>> open_rank_store(const std::string& rendezvous, uint32_t rank,
                                                   uint32_t ranks, Nanoseconds timeout);

} // namespace berth::engine
