// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <cstdint>
#include <span>
#include <vector>

namespace berth::http {

// Connections that lie in the kernel: a Unix stream socket pair that nobody reads, with a duplicate
// of each connection's descriptor in its queue. Whoever has the pair can take them up when the
// process that served them is gone. Entries stay until replace(). Not thread-safe; nothing blocks.
class Parking {
  public:
    struct Name {
        uint32_t slot = 0;
        uint64_t serial = 0; // tells doubles and leftovers apart
    };
    struct Found {
        Name name;
        UniqueFd fd;
    };
    struct Live {
        Name name;
        int fd = -1;
    };

    // The pair's two ends: what is sent into `in` is read from `out`.
    Parking(UniqueFd in, UniqueFd out);

    // ResourceExhausted: the queue is full, or the system holds as many descriptors in queues as it
    // may.
    Status park(const Live& connection);
    // All that lies there, oldest first; nothing is taken out. What is no entry is left out.
    Result<std::vector<Found>> look();
    // Leaves these and nothing else: they are sent again before the old ones are taken out, so that
    // an end in between leaves doubles at worst. On failure all are still there.
    Status replace(std::span<const Live> live);
    // Ends all connections that lie there and leaves none; how many there were.
    Result<size_t> clear();
    // Entries of the queue, some of which hold many connections.
    size_t messages() const { return messages_; }

  private:
    Status send(std::span<const Live> live);

    UniqueFd in_;
    UniqueFd out_;
    size_t messages_ = 0;
};

} // namespace berth::http
