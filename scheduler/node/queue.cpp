// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/queue.h"

#include <algorithm>
#include <functional>

namespace berth::node {

namespace {

// It was given a device and waits to go on there: nobody else needs the same.
bool stays(const Instance& i) {
    return i.state == InstanceState::kSuspended || !i.devices.empty();
}

} // namespace

size_t Queue::Hash::operator()(const Instance* i) const {
    const auto& spec = i->spec;
    size_t hash = std::hash<std::string_view>{}(spec.model);
    const auto add = [&hash](size_t value) {
        hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
    };
    add(spec.memory_request_bytes);
    add(spec.memory_limit_bytes);
    add(static_cast<size_t>(i->priority));
    return hash;
}

bool Queue::Same::operator()(const Instance* a, const Instance* b) const {
    if (a == b)
        return true;
    if (stays(*a) || stays(*b))
        return false;
    const auto &x = a->spec, &y = b->spec;
    return x.memory_request_bytes == y.memory_request_bytes &&
           x.memory_limit_bytes == y.memory_limit_bytes && x.grants() == y.grants() &&
           x.device_count == y.device_count && x.slo.has_value() == y.slo.has_value() &&
           a->boosted == b->boosted && a->on_hold == b->on_hold && a->state == b->state &&
           x.model == y.model && x.class_name == y.class_name && x.tenant == y.tenant &&
           x.devices == y.devices;
}

Queue::Queue(NodeState& state, Board& board) : board_(board) {
    for (auto& [name, i] : state.instances)
        if (waits_for_room(i) ||
            (i.state == InstanceState::kSuspended && i.held_by == HeldBy::kPlanner))
            all_.push_back({&i, effective_priority(state, i), 0, waits(i)});
    std::ranges::sort(all_, [](const Waiting& a, const Waiting& b) {
        return a.priority != b.priority ? a.priority > b.priority : a.i->order < b.i->order;
    });
    for (Waiting& one : all_)
        one.shape = shape_of(*one.i);
}

size_t Queue::shape_of(const Instance& i) {
    const auto [found, is_new] = shapes_.try_emplace(&i, claims_.size());
    if (is_new) {
        claims_.push_back(board_.claims_of(i));
        refusals_.emplace_back();
    }
    return found->second;
}

void Queue::move_claims(const Waiting& one, uint64_t Board::Row::* from,
                        uint64_t Board::Row::* to) {
    for (const Board::Claim& claim : claims_[one.shape]) {
        Board::Row& row = board_.rows()[claim.row];
        if (from != nullptr)
            row.*from -= std::min(row.*from, claim.bytes);
        if (to != nullptr)
            row.*to += claim.bytes;
    }
}

} // namespace berth::node
