// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/ranked_host.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::engine {

namespace {

using protocol::CommandKind;

constexpr Nanoseconds kLookAgain = std::chrono::milliseconds(10);

// The others are asked by what they say, not by the command.
bool is_shared(CommandKind kind) {
    return kind == CommandKind::kOffload || kind == CommandKind::kRestore ||
           kind == CommandKind::kShrink || kind == CommandKind::kGrow;
}

} // namespace

std::optional<protocol::Command> RankedHost::next_command() {
    while (auto command = host_.next_command())
        commands_.emplace_back(*command, Clock::now());
    while (!commands_.empty()) {
        const protocol::Command command = commands_.front().first;
        std::string missing;
        if (!is_shared(command.kind)) {
            commands_.pop_front();
            return command;
        }
        if (lead_.agreed(command, missing)) {
            commands_.pop_front();
            obeying_ = command;
            return command;
        }
        if (Clock::now() - commands_.front().second < agree_wait_)
            return std::nullopt;
        commands_.pop_front();
        protocol::CommandDone done;
        done.id = command.id;
        done.error = Error{ErrorCode::kDeadlineExceeded,
                           fmt::format("rank 0 was told to {} to {} and waited for the others in "
                                       "vain: {}; a command goes to all ranks of an instance",
                                       to_string(command.kind),
                                       format_bytes_exact(command.grant_bytes), missing),
                           "RanksDisagree", 0};
        host_.complete(std::move(done));
    }
    return std::nullopt;
}

void RankedHost::complete(protocol::CommandDone done) {
    if (obeying_ && obeying_->id == done.id)
        lead_.done(*std::exchange(obeying_, std::nullopt), done.error);
    host_.complete(std::move(done));
}

void RankedHost::wait(Nanoseconds timeout) {
    host_.wait(commands_.empty() ? timeout : std::min(timeout, kLookAgain));
}

} // namespace berth::engine
