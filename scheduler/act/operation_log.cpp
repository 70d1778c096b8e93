// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/operation_log.h"

#include "base/hash.h"
#include "scheduler/act/event_log.h"

namespace berth {

OperationEntry& OperationLog::entry(const node::OperationId& id) {
    auto [at, is_new] = entries_.try_emplace(id);
    if (is_new) {
        at->second.operation.id = id;
        at->second.started_ms = wall_clock_ms();
        order_.push_back(id);
        trim();
    }
    return entries_.at(id);
}

void OperationLog::trim() {
    for (size_t looked = 0; entries_.size() > kMax && looked < kMax; ++looked) {
        node::OperationId oldest = order_.front();
        order_.pop_front();
        auto found = entries_.find(oldest);
        if (found == entries_.end())
            continue;
        if (found->second.ended_ms == 0) {
            order_.push_back(oldest); // under way: still asked for
            continue;
        }
        by_request_.erase(found->second.request_id);
        entries_.erase(found);
    }
}

node::OperationId OperationLog::begin(const std::string& request_id, bool& known) {
    known = false;
    if (!request_id.empty()) {
        if (auto found = by_request_.find(request_id); found != by_request_.end()) {
            known = true;
            return found->second;
        }
    }
    node::OperationId id("op-" + random_hex(6));
    entry(id).request_id = request_id;
    if (!request_id.empty())
        by_request_[request_id] = id;
    return id;
}

void OperationLog::forget(const node::OperationId& id) {
    if (auto found = entries_.find(id); found != entries_.end()) {
        by_request_.erase(found->second.request_id);
        entries_.erase(found);
    }
    std::erase(order_, id);
}

OperationEntry OperationLog::for_record(const node::Operation& operation) {
    if (operation.state == node::OperationState::kRunning)
        return update(operation);
    OperationEntry ended = entry(operation.id);
    ended.operation = operation;
    ended.ended_ms = wall_clock_ms();
    return ended;
}

const OperationEntry& OperationLog::update(const node::Operation& operation) {
    OperationEntry& kept = entry(operation.id);
    kept.operation = operation;
    if (operation.state != node::OperationState::kRunning && kept.ended_ms == 0)
        kept.ended_ms = wall_clock_ms();
    changed_.notify();
    return kept;
}

void OperationLog::restore(OperationEntry restored) {
    node::OperationId id = restored.operation.id;
    if (!restored.request_id.empty())
        by_request_[restored.request_id] = id;
    entry(id) = std::move(restored);
}

const OperationEntry* OperationLog::find(const node::OperationId& id) const {
    auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : &found->second;
}

std::vector<const OperationEntry*> OperationLog::all() const {
    std::vector<const OperationEntry*> listed;
    for (const node::OperationId& id : order_)
        if (const OperationEntry* one = find(id))
            listed.push_back(one);
    return listed;
}

} // namespace berth
