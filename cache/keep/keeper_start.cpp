// SPDX-License-Identifier: Apache-2.0
#include "cache/keep/keeper_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <poll.h>

namespace berth {

namespace {

constexpr int kTryAgainMs = 5;

Result<RunningKeeper> find_keeper(const std::string& socket) {
    RunningKeeper keeper;
    BERTH_ASSIGN(keeper.client, KeeperClient::connect(socket));
    BERTH_ASSIGN(KeeperInfo info, keeper.client.ping());
    BERTH_ASSIGN(ProcessId id, process_id(info.pid));
    BERTH_ASSIGN(keeper.process, Process::adopt(id));
    return keeper;
}

// A keeper that lost the race for the lock ends before the winner listens.
constexpr auto kWinnerGrace = std::chrono::milliseconds(500);

// Waits a moment, or less when the process ends; poll skips the descriptor -1.
void pause_or_end(int pidfd) {
    pollfd waiting{pidfd, POLLIN, 0};
    ::poll(&waiting, 1, kTryAgainMs);
}

} // namespace

Result<RunningKeeper> ensure_keeper(const KeeperStart& start) {
    std::string socket = start.directory + "/keeper.sock";
    auto found = find_keeper(socket);
    if (found)
        return found;
    if (found.error().code == ErrorCode::kDeadlineExceeded)
        return fail(ErrorCode::kDeadlineExceeded,
                    fmt::format("a keeper has {} and does not answer; it may hold weights, so it "
                                "is left alone: look at it, then end it by hand",
                                socket),
                    "KeeperStuck");
    SpawnOptions options;
    std::string program =
        start.program.empty() ? program_directory() + "/berth-keeper" : start.program;
    // It outlives this process: it must not keep this one's working directory in use.
    options.command = {program, "--socket", std::filesystem::absolute(socket).string()};
    options.working_directory = "/";
    options.log_path = start.log_path;
    BERTH_ASSIGN(Process process, Process::spawn(options));
    auto deadline = std::chrono::steady_clock::now() +
                    std::chrono::duration_cast<std::chrono::steady_clock::duration>(start.timeout);
    std::optional<int> ended;
    for (;;) {
        if (!ended && (ended = process.try_wait()))
            deadline = std::min(deadline, std::chrono::steady_clock::now() + kWinnerGrace);
        auto keeper = find_keeper(socket);
        if (keeper) {
            keeper->started = keeper->process.id() == process.id();
            // The child's own handle, since only that reaps it.
            if (keeper->started)
                keeper->process = std::move(process);
            return keeper;
        }
        bool late = std::chrono::steady_clock::now() >= deadline;
        if (ended && late)
            return fail(ErrorCode::kUnavailable,
                        fmt::format("{} ended ({}) before it answered; its log is {}", program,
                                    describe_exit(*ended),
                                    start.log_path.empty() ? "on stderr" : start.log_path));
        if (late)
            return fail_in(fmt::format("{} does not answer at {}", program, socket),
                           std::move(keeper).error());
        pause_or_end(ended ? -1 : process.pidfd());
    }
}

} // namespace berth
