// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/held_memory.h"

#include "engine_shim/client/link.h"

#include <set>

namespace berth {

namespace {

std::string fingerprint_of(const protocol::Message& announcement) {
    if (const auto* publish = std::get_if<protocol::Publish>(&announcement))
        return publish->fingerprint;
    const auto* load = std::get_if<protocol::PrivateLoad>(&announcement);
    return load != nullptr ? load->fingerprint : std::string();
}

// A lease, which a release does not end: nothing is said before the next connection.
bool is_shared(const protocol::Message& announcement) {
    const auto* load = std::get_if<protocol::PrivateLoad>(&announcement);
    return load != nullptr && load->shared;
}

} // namespace

HeldMemory::Ticket HeldMemory::add(protocol::Message announcement) {
    std::lock_guard lock(mutex_);
    held_.emplace(next_, std::move(announcement));
    return next_++;
}

void HeldMemory::loader_ended(Ticket ticket) {
    std::lock_guard lock(mutex_);
    auto found = held_.find(ticket);
    auto* load =
        found == held_.end() ? nullptr : std::get_if<protocol::PrivateLoad>(&found->second);
    if (load == nullptr || load->device_overhead_bytes == 0)
        return;
    load->device_overhead_bytes = 0;
    post(found->second); // where nobody listens the next connection is told so
}

void HeldMemory::forget(Ticket ticket) {
    std::lock_guard lock(mutex_);
    held_.erase(ticket);
}

void HeldMemory::let_go(Ticket ticket) {
    std::lock_guard lock(mutex_);
    auto found = held_.find(ticket);
    if (found == held_.end())
        return;
    const bool shared = is_shared(found->second);
    protocol::Release release;
    release.fingerprint = fingerprint_of(found->second);
    held_.erase(found);
    if (shared)
        return;
    post(release);
    if (gone_.size() == kGoneMax)
        gone_.pop_front();
    gone_.push_back(std::move(release.fingerprint));
}

void HeldMemory::announce() {
    std::lock_guard lock(mutex_);
    std::set<std::string> again; // of these berthd forgets what was said before
    for (const auto& [ticket, announcement] : held_)
        if (!is_shared(announcement))
            again.insert(fingerprint_of(announcement));
    for (const std::string& fingerprint : gone_) {
        protocol::Release release;
        release.fingerprint = fingerprint;
        if (!again.contains(fingerprint))
            post(release);
    }
    std::set<std::pair<std::string, std::string>> leased; // a set once, however often it is held
    for (const auto& [ticket, announcement] : held_) {
        const auto* load = std::get_if<protocol::PrivateLoad>(&announcement);
        if (!is_shared(announcement) || leased.insert({load->device, load->fingerprint}).second)
            post(announcement);
    }
}

void HeldMemory::use(Link* link) {
    std::lock_guard lock(mutex_);
    link_ = link;
}

bool HeldMemory::post(const protocol::Message& message) {
    return link_ != nullptr && link_->post(message);
}

} // namespace berth
