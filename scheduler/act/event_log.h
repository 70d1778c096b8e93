// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/signal.h"
#include "scheduler/store/records.h"

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

namespace berth {

int64_t wall_clock_ms();

// What has happened, numbered: the newest in memory, all of them in the store. Thread rule: the
// io_context's one thread. It numbers and remembers; whoever adds an event also stores it.
class EventLog {
  public:
    static constexpr size_t kInMemoryMax = 2'000;

    explicit EventLog(boost::asio::io_context& context) : changed_(context) {}

    // Continues where the store ended. `first_stored` is the oldest revision that the store has.
    void restore(std::vector<EventRecord> newest, int64_t first_stored, int64_t last_revision);

    EventRecord add(bool warning, std::string object, std::string reason, std::string message);

    // The store has dropped what came before that one.
    void stored_from(int64_t first_revision) {
        oldest_stored_ = std::max(oldest_stored_, first_revision);
    }

    int64_t last_revision() const { return last_revision_; }
    // Events before it can no longer be had from anywhere.
    int64_t oldest_revision() const { return oldest_stored_; }
    // Whether everything above `since` is in memory.
    bool covers(int64_t since) const;
    std::vector<EventRecord> after(int64_t since, size_t limit) const;
    Signal& changed() { return changed_; }

  private:
    std::deque<EventRecord> newest_;
    int64_t last_revision_ = 0;
    int64_t oldest_stored_ = 1;
    Signal changed_;
};

} // namespace berth
