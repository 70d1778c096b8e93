// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/gate_side.h"

#include "base/log.h"

#include <sys/stat.h>

namespace berth {

Status GateSide::take(const protocol::Welcome& welcome, UniqueFd fd) {
    if (!fd)
        return {};
    struct stat facts{};
    if (::fstat(fd.get(), &facts) != 0)
        return fail_errno("looking at the gate page");
    Identity identity{facts.st_dev, facts.st_ino, welcome.raises_gate,
                      welcome.raises_gate ? welcome.gate_slot : 0, welcome.class_value};
    std::lock_guard lock(mutex_);
    if (known_ && identity == identity_)
        return {};
    if (welcome.raises_gate) {
        // A slot of ours is locked against ourselves too.
        if (known_ && identity.inode == identity_.inode && identity.slot == identity_.slot)
            raiser_ = GateRaiser();
        fd_ = std::move(fd);
        identity_ = identity;
        known_ = true;
        watcher_.store(nullptr, std::memory_order_release);
        return take_raiser();
    }
    BERTH_ASSIGN(GateWatcher watcher, GateWatcher::open(fd, welcome.class_value));
    watchers_.push_back(std::make_unique<GateWatcher>(std::move(watcher)));
    const GateWatcher* before =
        watcher_.exchange(watchers_.back().get(), std::memory_order_acq_rel);
    if (before != nullptr)
        before->wake();
    raiser_ = GateRaiser();
    slot_missing_ = false;
    identity_ = identity;
    known_ = true;
    return {};
}

Status GateSide::take_raiser() {
    auto raiser = GateRaiser::open(fd_, identity_.slot, identity_.class_value);
    if (!raiser && raiser.error().code == ErrorCode::kAlreadyExists) {
        // The slot's last owner (this instance's predecessor, as a rule) is about to end.
        if (!slot_missing_)
            log::warn("cannot raise the gate yet, trying again every second: {}",
                      raiser.error().message);
        slot_missing_ = true;
        return {};
    }
    if (!raiser)
        return fail(raiser.error());
    slot_missing_ = false;
    for (uint32_t i = 0; i < demand_; ++i)
        raiser->raise();
    raiser->set_spare(spare_);
    raiser_ = std::move(*raiser);
    return {};
}

void GateSide::retry() {
    std::lock_guard lock(mutex_);
    if (!slot_missing_)
        return;
    if (Status taken = take_raiser(); !taken)
        log::warn("cannot raise the gate: {}", taken.error().message);
}

void GateSide::raise() {
    std::lock_guard lock(mutex_);
    if (demand_++ == 0)
        busy_.set(true, BusyTime::Clock::now());
    if (raiser_)
        raiser_.raise();
}

void GateSide::lower() {
    std::lock_guard lock(mutex_);
    if (demand_ == 0)
        return log::warn("the gate was lowered more often than raised, ignoring it");
    if (--demand_ == 0)
        busy_.set(false, BusyTime::Clock::now());
    if (raiser_)
        raiser_.lower();
}

void GateSide::set_spare(uint32_t thousandths) {
    std::lock_guard lock(mutex_);
    spare_ = static_cast<uint32_t>(thousandths * busy_.need(BusyTime::Clock::now()));
    raiser_.set_spare(spare_);
}

uint32_t GateSide::share_to_give() const {
    std::lock_guard lock(mutex_);
    return demand_ == 0 ? 0 : raiser_.share_to_give();
}

bool GateSide::spares_by_targets() const {
    std::lock_guard lock(mutex_);
    return raiser_.spares_by_targets();
}

bool GateSide::begin_turn() {
    std::lock_guard lock(mutex_);
    return raiser_.begin_turn();
}

void GateSide::end_turn() {
    std::lock_guard lock(mutex_);
    raiser_.end_turn();
}

uint32_t GateSide::share() const {
    const GateWatcher* watcher = watcher_.load(std::memory_order_acquire);
    return watcher == nullptr ? 0 : watcher->share();
}

bool GateSide::closed() const {
    const GateWatcher* watcher = watcher_.load(std::memory_order_acquire);
    return watcher != nullptr && watcher->closed();
}

bool GateSide::wait(Nanoseconds timeout) const {
    const GateWatcher* watcher = watcher_.load(std::memory_order_acquire);
    return watcher == nullptr || watcher->wait(timeout);
}

const std::atomic<uint32_t>* GateSide::changes() const {
    const GateWatcher* watcher = watcher_.load(std::memory_order_acquire);
    return watcher == nullptr ? nullptr : watcher->changes();
}

void GateSide::wake() const {
    if (const GateWatcher* watcher = watcher_.load(std::memory_order_acquire))
        watcher->wake();
}

} // namespace berth
