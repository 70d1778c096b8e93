// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/command_queue.h"

#include "base/log.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

using protocol::Command;
using protocol::CommandDone;
using protocol::CommandKind;

constexpr size_t kCommandsMax = 64;

} // namespace

void CommandQueue::push(Command command, uint64_t epoch) {
    std::lock_guard lock(mutex_);
    if (queue_.size() >= kCommandsMax) {
        CommandDone done;
        done.id = command.id;
        done.error = Error{ErrorCode::kResourceExhausted,
                           fmt::format("{} commands wait for this engine already", kCommandsMax),
                           "TooManyCommands", 0};
        return answer_(done, epoch);
    }
    queue_.push_back({std::move(command), epoch});
    waiting_.store(queue_.size(), std::memory_order_release);
    changed_.notify_all();
}

void CommandQueue::forget_before(uint64_t epoch) {
    std::lock_guard lock(mutex_);
    std::erase_if(queue_, [&](const Entry& entry) { return entry.epoch < epoch; });
    waiting_.store(queue_.size(), std::memory_order_release);
}

std::optional<Command> CommandQueue::next() {
    std::lock_guard lock(mutex_);
    if (queue_.empty())
        return std::nullopt;
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    waiting_.store(queue_.size(), std::memory_order_release);
    Command command = entry.command;
    taken_[command.id] = std::move(entry);
    return command;
}

bool CommandQueue::complete(const CommandDone& done) {
    std::lock_guard lock(mutex_);
    auto found = taken_.find(done.id);
    if (found == taken_.end())
        return false;
    if (!done.error)
        note(found->second.command.kind);
    uint64_t epoch = found->second.epoch;
    taken_.erase(found);
    answer_(done, epoch);
    return true;
}

void CommandQueue::note(CommandKind kind) {
    switch (kind) {
    case CommandKind::kPause:
        paused_.store(true, std::memory_order_release);
        break;
    case CommandKind::kResume:
        paused_.store(false, std::memory_order_release);
        break;
    case CommandKind::kOffload:
        offloaded_ = true;
        break;
    case CommandKind::kRestore:
        // Restore means: go on, whatever held it.
        offloaded_ = false;
        paused_.store(false, std::memory_order_release);
        break;
    case CommandKind::kStop:
    case CommandKind::kShrink:
    case CommandKind::kGrow:
    case CommandKind::kServe:
        break;
    }
    changed_.notify_all();
}

const char* CommandQueue::held() const {
    std::lock_guard lock(mutex_);
    if (offloaded_)
        return "Offloaded";
    return paused() ? "Paused" : standby_.load(std::memory_order_acquire) ? "Standby" : "";
}

void CommandQueue::wait(Nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return notified_ || !queue_.empty(); });
    notified_ = false;
}

void CommandQueue::notify() {
    std::lock_guard lock(mutex_);
    notified_ = true;
    changed_.notify_all();
}

CommandQueue::Outlook CommandQueue::settle(uint64_t grant_bytes) {
    std::lock_guard lock(mutex_);
    while (!queue_.empty()) {
        Entry& head = queue_.front();
        CommandKind kind = head.command.kind;
        if (kind != CommandKind::kPause && kind != CommandKind::kResume)
            return Outlook::kOther;
        CommandDone done;
        done.id = head.command.id;
        done.grant_bytes = grant_bytes;
        note(kind);
        answer_(done, head.epoch);
        queue_.pop_front();
        waiting_.store(queue_.size(), std::memory_order_release);
    }
    return paused() ? Outlook::kPaused : Outlook::kFree;
}

void CommandQueue::wait_for_change(Nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return !queue_.empty(); });
}

} // namespace berth
