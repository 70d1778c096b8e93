// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/signal.h"
#include "scheduler/node/state.h"

#include <deque>
#include <map>
#include <string>
#include <vector>

namespace berth {

// An operation with what the node's state does not know of it: wall-clock times and the caller's
// request id.
struct OperationEntry {
    node::Operation operation;
    std::string request_id;
    int64_t started_ms = 0;
    int64_t ended_ms = 0; // 0 while it runs
};

// The operations of late, under way or ended, by id and by request id. Bounded: the oldest ended
// ones are forgotten (the store keeps them longer). Thread rule: the io_context's one thread.
class OperationLog {
  public:
    static constexpr size_t kMax = 500;

    explicit OperationLog(boost::asio::io_context& context) : changed_(context) {}

    // A new operation's id; the one under that request id if there is one already (`known`).
    node::OperationId begin(const std::string& request_id, bool& known);
    bool knows(const std::string& request_id) const { return by_request_.contains(request_id); }
    // Begun, but refused before the node heard of it.
    void forget(const node::OperationId& id);
    // What the store is to keep of it. An end is not shown yet: what ends it (descriptors filed, a
    // command sent) is carried out only once this is on disk, and update() says so then.
    OperationEntry for_record(const node::Operation& operation);
    // Keeps the newest word on an operation and shows it; stamps its end.
    const OperationEntry& update(const node::Operation& operation);
    void restore(OperationEntry entry);

    const OperationEntry* find(const node::OperationId& id) const;
    std::vector<const OperationEntry*> all() const; // oldest first
    Signal& changed() { return changed_; }

  private:
    OperationEntry& entry(const node::OperationId& id);
    void trim();

    std::map<node::OperationId, OperationEntry> entries_;
    std::map<std::string, node::OperationId> by_request_;
    std::deque<node::OperationId> order_;
    Signal changed_;
};

} // namespace berth
