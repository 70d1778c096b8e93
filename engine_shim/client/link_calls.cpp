// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/link.h"

#include "base/log.h"

#include <fmt/format.h>

// The side of a Link that other threads call; link.cpp is what its own thread does.
namespace berth {

namespace {

constexpr size_t kOutboxMax = 1024;
constexpr auto kAnswerSoon = std::chrono::microseconds(150);

} // namespace

Status Link::wait_up(Deadline deadline) {
    std::unique_lock lock(mutex_);
    bool done = changed_.wait_until(lock, deadline, [&] {
        return phase_ == Phase::kUp || stop_ || (attempt_ && attempt_->refused);
    });
    if (phase_ == Phase::kUp)
        return {};
    if (done && attempt_ && attempt_->refused)
        return fail(attempt_->error);
    return fail(ErrorCode::kUnavailable,
                fmt::format("no berthd answers at {}{}{}", socket_path_, attempt_ ? ": " : "",
                            attempt_ ? attempt_->error.message : ""));
}

std::optional<Link::Attempt> Link::attempt() {
    std::lock_guard lock(mutex_);
    return attempt_;
}

bool Link::wait_attempt(Deadline deadline, uint64_t& seen) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline,
                        [&] { return phase_ == Phase::kUp || attempts_ != seen || stop_; });
    seen = attempts_;
    return phase_ == Phase::kUp;
}

bool Link::post(protocol::Message message, uint64_t epoch) {
    std::string payload = encode(message);
    {
        std::lock_guard lock(mutex_);
        if (!takes_posts_locked() || (epoch != 0 && epoch != epoch_))
            return false;
        if (!has_room_locked())
            return false;
        outbox_.push_back({std::move(payload), {}});
    }
    wake();
    return true;
}

bool Link::has_room_locked() const {
    if (outbox_.size() < kOutboxMax)
        return true;
    log::warn("berthd does not read: {} messages wait, dropping one", kOutboxMax);
    return false;
}

// Made under the lock: after an answer that changes a figure no report tells the old one.
void Link::post_report() {
    std::lock_guard lock(mutex_);
    if (takes_posts_locked() && has_room_locked())
        outbox_.push_back({encode(listener_.report()), {}});
}

void Link::report_soon() {
    {
        std::lock_guard lock(mutex_);
        report_soon_ = true;
    }
    wake();
}

Result<Link::Reply> Link::request(protocol::Message message, const std::vector<int>& fds,
                                  const std::function<void(const protocol::Progress&)>& progress,
                                  bool& lost) {
    // The caller's descriptors may be closed before a full socket takes them.
    Outgoing outgoing;
    for (int fd : fds) {
        UniqueFd borrowed(fd);
        auto copy = borrowed.duplicate();
        (void)borrowed.release();
        BERTH_ASSIGN(UniqueFd own, std::move(copy));
        outgoing.fds.push_back(std::move(own));
    }
    Pending pending;
    std::unique_lock lock(mutex_);
    lost = phase_ != Phase::kUp;
    if (lost)
        return fail(ErrorCode::kUnavailable, "the connection to berthd was lost");
    const uint64_t id = next_id_++;
    std::visit([id](auto& body) { body.id = id; }, message);
    outgoing.payload = encode(message);
    pending_[id] = &pending;
    // Sent from here where nothing waits before it: the link's thread need not be woken first.
    auto sent = outbox_.empty()
                    ? send_packet_nowait(socket_.get(), outgoing.payload, outgoing.numbers())
                    : false;
    if (!sent || !*sent)
        outbox_.push_back(std::move(outgoing));
    // Also when the callback throws.
    struct Forget {
        Link& link;
        std::unique_lock<std::mutex>& lock;
        uint64_t id;
        ~Forget() {
            if (!lock.owns_lock())
                lock.lock();
            link.pending_.erase(id);
        }
    } forget{*this, lock, id};
    if (!sent || !*sent)
        wake();
    // A resident set is answered within microseconds: looking a few times costs less than to sleep
    // and be woken.
    const Deadline sleep_at = std::chrono::steady_clock::now() + kAnswerSoon;
    while (!pending.answer && pending.progress.empty() &&
           std::chrono::steady_clock::now() < sleep_at) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
    }
    while (!pending.answer || !pending.progress.empty()) {
        changed_.wait(lock, [&] { return pending.answer || !pending.progress.empty(); });
        while (!pending.progress.empty()) {
            protocol::Progress step = std::move(pending.progress.front());
            pending.progress.pop_front();
            lock.unlock();
            if (progress)
                progress(step);
            lock.lock();
        }
    }
    lost = pending.lost;
    return std::move(*pending.answer);
}

} // namespace berth
