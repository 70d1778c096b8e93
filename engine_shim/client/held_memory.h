// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/protocol/messages.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace berth {

class Link;

// What this process holds beside its grant, by tickets: segments that it fills to publish, weights
// of its own, and shared sets that it has mapped, whose leases end with the connection. A berthd
// that it connects to again is told of it, and berthd when it is held no longer. Thread-safe;
// nothing blocks. Shared: weights may outlive their client, and are then said to be gone by the
// process's end alone.
class HeldMemory {
  public:
    using Ticket = uint64_t;
    HeldMemory() = default;
    HeldMemory(const HeldMemory&) = delete;
    HeldMemory& operator=(const HeldMemory&) = delete;

    // What a next connection is told: a Publish or PrivateLoad with `held`.
    Ticket add(protocol::Message announcement);
    // The loader that filled it has ended, and its context with it.
    void loader_ended(Ticket ticket);
    // It is the node's now.
    void forget(Ticket ticket);
    // This process has it no longer.
    void let_go(Ticket ticket);

    // The connection is there: what was let go, then what is held.
    void announce();
    // The link to say it by, until it is taken away (null).
    void use(Link* link);

  private:
    // Said again on the next connection, since what was said on a broken one may be lost. What has
    // dropped out and was lost counts until this process ends.
    static constexpr size_t kGoneMax = 64;
    bool post(const protocol::Message& message);

    std::mutex mutex_; // guards all; the link's own come after
    Link* link_ = nullptr;
    Ticket next_ = 1;
    std::map<Ticket, protocol::Message> held_;
    std::deque<std::string> gone_; // fingerprints, the latest
};

// One ticket's life: dropped, the memory is said to be gone. Drop it after the memory.
class Holding {
  public:
    Holding(std::shared_ptr<HeldMemory> held, HeldMemory::Ticket ticket)
        : held_(std::move(held)), ticket_(ticket) {}
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;
    ~Holding() { held_->let_go(ticket_); }
    void loader_ended() { held_->loader_ended(ticket_); }

  private:
    std::shared_ptr<HeldMemory> held_;
    HeldMemory::Ticket ticket_;
};

} // namespace berth
