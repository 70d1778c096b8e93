// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/protocol/messages.h"
#include "scheduler/cli/bench/bench.h"

namespace berth::cli::bench {

// What a bench attaches to: a weight set that is resident.
struct Target {
    std::string socket;
    std::string set;
    std::string device;
    uint64_t bytes = 0;
    uint64_t tensors = 0;
};
// By --weights, --model, or the first that is resident.
Result<Target> resident_target(const AdminClient& client, const Options& options);

// A guest's connection without libberth's thread and back-off, for what must be timed to the
// microsecond. Blocks; one thread.
class Guest {
  public:
    // Connects and greets, one try.
    static Result<Guest> connect(const std::string& socket);
    struct Attached {
        UniqueFd manifest;
        std::vector<Segment> segments;
    };
    Result<Attached> attach(const Target& target);

  private:
    UniqueFd socket_;
    uint64_t next_id_ = 1;
};

} // namespace berth::cli::bench
