// SPDX-License-Identifier: Apache-2.0
#include "base/http/kept_connection.h"

#include "base/http/keeping.h"
#include "base/log.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <unistd.h>
#include <utility>

namespace berth::http {

KeptConnection::KeptConnection(std::shared_ptr<Keeping> keeping, uint32_t slot, std::byte* memory,
                               SlotLayout layout)
    : keeping_(std::move(keeping)), slot_(slot), memory_(memory), layout_(layout) {}

KeptConnection::~KeptConnection() = default;

void KeptConnection::begin(uint64_t serial, const TcpCount& count) {
    serial_ = serial;
    in_total_ = count.taken;
    SlotState first;
    first.in_base = first.in_start = count.taken;
    first.out_start = count.given;
    publish(head().entries, uint64_t{0});
    clear_record();
    commit(first);
    publish(head().serial, serial);
    active_ = true;
}

// Every number is another process's word.
bool KeptConnection::fits(const SlotState& state, const TcpCount& count, uint64_t entries) const {
    const bool in_fits = state.in_base <= state.in_start && state.in_start <= count.taken &&
                         count.taken - state.in_base <= layout_.in_bytes() &&
                         state.request_bytes <= count.taken - state.in_start;
    const bool out_fits = state.out_bytes <= layout_.out_bytes() &&
                          state.out_start <= count.given &&
                          count.given - state.out_start <= state.out_bytes;
    const bool is_begun = state.request_bytes > 0 && state.memo_bytes > 0;
    bool phase_fits = false;
    switch (state.phase) {
    case Phase::kReading:
        phase_fits = state.out_bytes == 0;
        break;
    case Phase::kContinued:
    case Phase::kAnswered:
        phase_fits = true;
        break;
    case Phase::kAnswering:
        phase_fits = is_begun;
        break;
    }
    return in_fits && out_fits && phase_fits && state.memo_bytes <= kMemoBytesMax &&
           state.covered <= entries;
}

// A request that was read whole is gone on with from here on.
bool KeptConnection::is_worth_it(const SlotState& state) {
    if (state.request_bytes == 0 || state.phase == Phase::kAnswered)
        return true;
    SlotHead& left = head();
    if (std::exchange(left.work, 0) != 0)
        ++left.strikes;
    if (left.strikes < kStrikesMax)
        return true;
    log::error("{} processes have ended while they were at work on the same request: it is not "
               "tried again, its connection is ended",
               left.strikes);
    return false;
}

bool KeptConnection::take_over(const TcpCount& count) {
    const SlotHead& left = head();
    serial_ = left.serial;
    current_ = left.current;
    if (serial_ == 0 || current_ > 1)
        return false;
    const SlotState state = left.states[current_];
    const uint64_t mark = left.entries;
    entries_ =
        static_cast<uint32_t>(mark) * (mark >> 32 == (state.requests & 0xffffffff) ? 1U : 0U);
    if (entries_ > layout_.entry_bytes() / sizeof(uint64_t) || !fits(state, count, entries_) ||
        !is_worth_it(state))
        return false;
    state_ = state;
    in_total_ = count.taken;
    active_ = true;
    resumes_ = is_begun();
    cover_entries_ = state.covered;
    cover_stage_ = state.stage;
    const uint64_t taken = count.given - state.out_start;
    unsent_.assign(area(layout_.out_at()) + taken, state.out_bytes - taken);
    out_high_ = state.out_bytes;
    // What is beyond: of requests that were over when the other process ended.
    keeping_->wipe(memory_ + layout_.in_at(), state.in_start - state.in_base);
    const uint64_t in_end = count.taken - state.in_base;
    keeping_->wipe(memory_ + layout_.in_at() + in_end, layout_.in_bytes() - in_end);
    const uint64_t entries_end = entries_ * sizeof(uint64_t);
    keeping_->wipe(memory_ + layout_.entries_at() + entries_end,
                   layout_.entry_bytes() - entries_end);
    keeping_->wipe(memory_ + layout_.out_at() + out_high_, layout_.out_bytes() - out_high_);
    return true;
}

void KeptConnection::clear_record() {
    head().strikes = 0;
    head().work = 0;
}

void KeptConnection::leave() {
    lose_mark();
    if (active_)
        head().work = 0; // this process ends of its own will
    active_ = false;
}

KeptConnection::Mark KeptConnection::mark() {
    if (!active_)
        return nullptr;
    if (!mark_)
        mark_ = std::make_shared<MarkedSlot>(keeping_, &head().work);
    return mark_;
}

void KeptConnection::lose_mark() {
    if (mark_)
        mark_->work.store(nullptr);
    mark_.reset();
}

void KeptConnection::set(const Mark& mark, Work work) {
    if (uint64_t* slot = mark ? mark->work.load() : nullptr; slot != nullptr)
        std::atomic_ref<uint64_t>(*slot).store(work_by(static_cast<uint32_t>(::getpid()), work),
                                               std::memory_order_relaxed);
}

bool KeptConnection::is_read() const {
    return active_ && state_.request_bytes > 0 && state_.phase != Phase::kAnswered;
}

bool KeptConnection::is_begun() const {
    return is_read() && state_.memo_bytes > 0;
}

void KeptConnection::catch_up(const TcpCount& count) {
    if (active_ && count.taken > in_total_ && count.taken - in_total_ <= room().size())
        in_total_ = count.taken;
}

// The state that does not count is written, then it counts.
void KeptConnection::commit(const SlotState& next) {
    const uint32_t other = 1 - current_;
    head().states[other] = next;
    publish(head().current, other);
    current_ = other;
    state_ = next;
}

std::string_view KeptConnection::inbound() const {
    if (!active_)
        return {};
    return {area(layout_.in_at()) + (state_.in_start - state_.in_base),
            in_total_ - state_.in_start};
}

std::span<char> KeptConnection::room() {
    if (!active_)
        return {};
    const uint64_t used = in_total_ - state_.in_base;
    return {area(layout_.in_at()) + used, layout_.in_bytes() - used};
}

void KeptConnection::begin_request(size_t bytes) {
    if (!active_)
        return;
    SlotState next = state_;
    next.request_bytes = bytes;
    commit(next);
}

bool KeptConnection::begin_write(std::string_view bytes, Phase phase, bool closes) {
    if (!active_)
        return true;
    if (bytes.size() > layout_.out_bytes()) {
        give_up();
        return false;
    }
    std::memcpy(area(layout_.out_at()), bytes.data(), bytes.size());
    out_high_ = std::max(out_high_, bytes.size());
    SlotState next = state_;
    next.out_start = state_.out_start + state_.out_bytes;
    next.out_bytes = bytes.size();
    next.covered = cover_entries_;
    next.stage = cover_stage_;
    next.phase = phase;
    next.closes = closes ? 1 : 0;
    commit(next);
    return true;
}

void KeptConnection::wipe_request(uint64_t inbound_at, uint64_t inbound_bytes) {
    keeping_->wipe(memory_ + layout_.in_at() + inbound_at, inbound_bytes);
    keeping_->wipe(memory_ + layout_.entries_at(), entries_ * sizeof(uint64_t));
    keeping_->wipe(memory_ + layout_.out_at(), out_high_);
    entries_ = out_high_ = 0;
}

// The bytes of a next request that came along stand behind this one's.
void KeptConnection::make_room() {
    const uint64_t at = state_.in_start - state_.in_base;
    const uint64_t bytes = in_total_ - state_.in_start;
    if (at == 0 || bytes > at)
        return; // while they are copied both must stay whole
    std::memcpy(area(layout_.in_at()), area(layout_.in_at()) + at, bytes);
    SlotState next = state_;
    next.in_base = next.in_start;
    commit(next);
    keeping_->wipe(memory_ + layout_.in_at() + bytes, at);
}

void KeptConnection::end_request() {
    if (!active_)
        return;
    const uint64_t at = state_.in_start - state_.in_base;
    const uint64_t bytes = state_.request_bytes;
    SlotState next;
    next.in_base = state_.in_base;
    next.in_start = state_.in_start + bytes;
    next.requests = state_.requests + 1;
    next.out_start = state_.out_start + state_.out_bytes;
    if (next.in_start == in_total_)
        next.in_base = next.in_start;
    commit(next);
    clear_record();
    wipe_request(at, bytes);
    make_room();
    resumes_ = false;
    unsent_.clear();
    cover_entries_ = cover_stage_ = 0;
}

void KeptConnection::free_slot() {
    const uint64_t in_used = in_total_ - state_.in_base;
    lose_mark();
    publish(head().serial, uint64_t{0});
    wipe_request(0, std::min(in_used, layout_.in_bytes()));
    head().states = {};
    publish(head().entries, uint64_t{0});
    clear_record();
    active_ = false;
    keeping_->freed(*this);
}

void KeptConnection::end() {
    if (active_)
        free_slot();
}

void KeptConnection::give_up(Why why) {
    if (!active_)
        return;
    leftover_ = inbound().substr(state_.request_bytes);
    if (why == Why::kTooLarge)
        keeping_->note_too_large();
    free_slot();
}

std::span<const uint64_t> KeptConnection::entries() const {
    return {reinterpret_cast<const uint64_t*>(memory_ + layout_.entries_at()), entries_};
}

void KeptConnection::note(std::string_view memo) {
    if (!active_)
        return;
    assert(memo.size() <= kMemoBytesMax);
    SlotState next = state_;
    next.memo_bytes = static_cast<uint32_t>(std::min(memo.size(), kMemoBytesMax));
    std::memcpy(next.memo.data(), memo.data(), next.memo_bytes);
    commit(next);
}

void KeptConnection::append(uint64_t entry) {
    if (!active_)
        return;
    if ((entries_ + 1) * sizeof(uint64_t) > layout_.entry_bytes())
        return give_up();
    std::memcpy(memory_ + layout_.entries_at() + entries_ * sizeof entry, &entry, sizeof entry);
    ++entries_;
    publish(head().entries, (state_.requests & 0xffffffff) << 32 | entries_);
    if (head().strikes != 0)
        head().strikes = 0;
}

void KeptConnection::cover(size_t entries, uint32_t stage) {
    cover_entries_ = entries;
    cover_stage_ = stage;
}

} // namespace berth::http
