// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/event_log.h"

#include "scheduler/store/store.h"

#include <chrono>

namespace berth {

int64_t wall_clock_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

void EventLog::restore(std::vector<EventRecord> newest, int64_t first_stored,
                       int64_t last_revision) {
    newest_.assign(std::make_move_iterator(newest.begin()), std::make_move_iterator(newest.end()));
    last_revision_ = last_revision;
    oldest_stored_ = first_stored > 0 ? first_stored : last_revision + 1;
}

EventRecord EventLog::add(bool warning, std::string object, std::string reason,
                          std::string message) {
    EventRecord record{++last_revision_,  wall_clock_ms(),   warning ? "Warning" : "Normal",
                       std::move(object), std::move(reason), std::move(message)};
    newest_.push_back(record);
    if (newest_.size() > kInMemoryMax)
        newest_.pop_front();
    // The store tells what it has dropped; what it may have dropped by now is not promised.
    stored_from(last_revision_ - StoreLimits().events_max + 1);
    changed_.notify();
    return record;
}

bool EventLog::covers(int64_t since) const {
    return since >= last_revision_ || (!newest_.empty() && newest_.front().revision <= since + 1);
}

std::vector<EventRecord> EventLog::after(int64_t since, size_t limit) const {
    auto first = std::upper_bound(
        newest_.begin(), newest_.end(), since,
        [](int64_t revision, const EventRecord& record) { return revision < record.revision; });
    auto left = static_cast<size_t>(newest_.end() - first);
    return {first, first + static_cast<std::ptrdiff_t>(std::min(left, limit))};
}

} // namespace berth
