// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/event.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>
#include <variant>

namespace berth {

// Events that come while nothing can be written down, in their order. They are few: of what only
// says how things are now the last word stays, a lease that is over leaves nothing, and beyond
// kRequestsMax no more requests are taken (who asked waits for an answer and asks again). Thread
// rule: one thread.
class HeldEvents {
  public:
    static constexpr size_t kRequestsMax = 50'000;

    // False: it was a request too many.
    bool hold(node::Event event) {
        if (replaces(event) || ends_lease(event))
            return true;
        if (events_.size() >= kRequestsMax && is_request(event))
            return false;
        events_.push_back(std::move(event));
        return true;
    }
    std::deque<node::Event> take() { return std::exchange(events_, {}); }
    size_t size() const { return events_.size(); }

  private:
    template <typename Kind, typename Same>
    bool replace(const node::Event& event, Same same) {
        const auto* fresh = std::get_if<Kind>(&event);
        if (fresh == nullptr)
            return false;
        for (node::Event& held : events_)
            if (auto* old = std::get_if<Kind>(&held); old != nullptr && same(*old, *fresh)) {
                held = *fresh;
                return true;
            }
        return false;
    }
    bool replaces(const node::Event& event) {
        return replace<node::EngineReport>(
                   event, [](auto& a, auto& b) { return a.instance == b.instance; }) ||
               replace<node::EngineHeard>(
                   event,
                   [](auto& a, auto& b) { return a.instance == b.instance && a.rank == b.rank; }) ||
               replace<node::LoadProgress>(event,
                                           [](auto& a, auto& b) { return a.load == b.load; }) ||
               replace<node::WallClockTold>(event, [](auto&, auto&) { return true; });
    }
    bool ends_lease(const node::Event& event) {
        const auto* closed = std::get_if<node::LeaseClosed>(&event);
        if (closed == nullptr)
            return false;
        auto opened = std::find_if(events_.begin(), events_.end(), [&](const node::Event& held) {
            const auto* one = std::get_if<node::LeaseOpened>(&held);
            return one != nullptr && one->lease == closed->lease;
        });
        if (opened == events_.end())
            return false;
        events_.erase(opened);
        return true;
    }
    static bool is_request(const node::Event& event) {
        return std::holds_alternative<node::LoadRequested>(event) ||
               std::holds_alternative<node::PublishRequested>(event) ||
               std::holds_alternative<node::LeaseOpened>(event) ||
               std::holds_alternative<node::CanaryExpected>(event) ||
               std::holds_alternative<node::CanaryReported>(event);
    }

    std::deque<node::Event> events_;
};

} // namespace berth
