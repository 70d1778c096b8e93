// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"

#include <functional>
#include <map>
#include <utility>

namespace berth::simulate {

// What is going to happen, in virtual time; at one moment in the order in which it was planned.
// What was planned about something that is gone by then looks for itself, and does nothing. One
// thread; a deed may plan others.
class Calendar {
  public:
    using Deed = std::function<void()>;

    void at(node::TimePoint when, Deed deed) {
        deeds_.emplace(std::pair(when, next_++), std::move(deed));
    }
    bool empty() const { return deeds_.empty(); }
    node::TimePoint next_at() const {
        return deeds_.empty() ? node::TimePoint::max() : deeds_.begin()->first.first;
    }
    // The next one, taken out.
    Deed take() {
        auto first = deeds_.begin();
        Deed deed = std::move(first->second);
        deeds_.erase(first);
        return deed;
    }

  private:
    std::map<std::pair<node::TimePoint, uint64_t>, Deed> deeds_;
    uint64_t next_ = 0;
};

} // namespace berth::simulate
