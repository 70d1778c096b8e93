// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/fd_watch.h"

#include <functional>
#include <memory>

namespace berth {

// The process at the other end of a session, by its credentials. What it holds is given back when
// it ends, whoever else has its socket (a child that it forked, say). Shared by the session and by
// what outlives it. Thread rule: the io_context's one thread. Dropping it ends the watch.
class PeerProcess {
  public:
    // Null where it cannot be watched: no descriptor is left, or it cannot be seen from here; its
    // session's end is then taken for its own. `on_end` is called from a turn of the io_context,
    // also when it had ended before; never after this is dropped.
    static std::shared_ptr<PeerProcess> watch(boost::asio::io_context& context, int pid,
                                              std::function<void()> on_end);
    bool ended() const { return ended_; }

  private:
    bool ended_ = false;
    FdWatch watch_;
};

} // namespace berth
