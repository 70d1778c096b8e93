// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"

#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <map>
#include <memory>

namespace berth {

// The node's timers on the io_context; a cancelled one never fires. Thread rule: the one thread.
class Timers {
  public:
    using Fired = std::function<void(node::TimerId)>;
    Timers(boost::asio::io_context& context, Fired fired)
        : context_(context), fired_(std::move(fired)) {}

    void arm(node::TimerId id, node::TimePoint at) {
        auto& timer = timers_[id];
        timer = std::make_unique<boost::asio::steady_timer>(context_, at);
        timer->async_wait([this, id](boost::system::error_code error) {
            if (!error && timers_.erase(id) > 0)
                fired_(id);
        });
    }
    void cancel(node::TimerId id) { timers_.erase(id); }
    void clear() { timers_.clear(); }

  private:
    boost::asio::io_context& context_;
    Fired fired_;
    std::map<node::TimerId, std::unique_ptr<boost::asio::steady_timer>> timers_;
};

} // namespace berth
