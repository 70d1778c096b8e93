// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "cache/load/load.h"
#include "engine_shim/protocol/messages.h"

#include <string>

namespace berth {

// What is said of a plan's first rank.
protocol::Planned planned(const LoadPlan& plan, const LoadCost& cost);
// What a load of any kind takes.
protocol::Planned planned(const LoadCost& cost);

// The loader's side of its conversation with berthd: Planned -> Go | Failed, Progress*, Sealed ->
// Kept. One thread. Every call fails with Unavailable when berthd is gone; there is nobody to load
// for then, and the caller ends.
class Control {
  public:
    Control() = default;
    explicit Control(UniqueFd socket) : socket_(std::move(socket)) {}
    explicit operator bool() const { return static_cast<bool>(socket_); }

    // Sends the plan and waits until berthd has made room (or says that there is none).
    Status ask(const protocol::Planned& planned);
    // Also looks whether berthd is still there and still wants the load.
    Status progress(const std::string& phase, uint64_t done, uint64_t total);
    // Passes the set on and waits until it is kept.
    Status hand_over(const std::string& fingerprint, const LoadedSet& set);
    // Best effort: a peer that is gone cannot be told.
    void tell_failure(const Error& error);

  private:
    Status check_peer();

    UniqueFd socket_;
};

} // namespace berth
