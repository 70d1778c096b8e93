// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/node_calls.h"

#include "base/process.h"
#include "base/unique_fd.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <poll.h>

namespace berth::cli::bench {

namespace {

using std::chrono::milliseconds;

// Looks are a twentieth of what has gone apart, within these bounds: so much later than it was is
// what one waits for seen.
constexpr std::chrono::microseconds kLookFirst{200};
constexpr milliseconds kLookEvery{5};
constexpr std::chrono::seconds kRunningMax{300};

std::chrono::microseconds until_next_look(Clock::time_point since) {
    const auto gone = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - since);
    return std::clamp<std::chrono::microseconds>(gone / 20, kLookFirst, kLookEvery);
}

} // namespace

Result<json::object> instance_of(const AdminClient& client, const std::string& name) {
    BERTH_ASSIGN(json::value reply, client.get("/v1/instances/" + http::percent_encode(name)));
    if (!reply.is_object())
        return fail(ErrorCode::kCorrupt, "berthd's reply is no instance");
    return std::move(reply.get_object());
}

Result<uint64_t> free_bytes(const AdminClient& client, const std::string& device) {
    BERTH_ASSIGN(json::value reply, client.get("/v1/devices/" + http::percent_encode(device)));
    if (!reply.is_object())
        return fail(ErrorCode::kCorrupt, "berthd's reply is no device");
    return number_at(reply.get_object(), "freeBytes");
}

uint64_t tokens_done(const json::object& instance) {
    const auto* counters = instance.if_contains("counters");
    return counters != nullptr && counters->is_object()
               ? number_at(counters->get_object(), "tokensDone")
               : 0;
}

Result<Finished> run_to_end(const AdminClient& client, const std::string& target,
                            const json::object& body) {
    auto began = Clock::now();
    BERTH_ASSIGN(json::object operation, begin(client, target, body));
    Finished finished;
    BERTH_ASSIGN(finished.operation, wait_for(client, text_at(operation, "id")));
    finished.wall_ms = milliseconds_since(began);
    BERTH_TRY(outcome_of(finished.operation));
    return finished;
}

Result<std::optional<double>> until_token(const AdminClient& client, const std::string& name,
                                          uint64_t before, Clock::time_point since,
                                          milliseconds limit) {
    auto end = Clock::now() + limit;
    while (Clock::now() < end) {
        BERTH_ASSIGN(json::object now, instance_of(client, name));
        uint64_t tokens = tokens_done(now);
        if (tokens > before || (tokens > 0 && tokens < before))
            return std::optional(milliseconds_since(since));
        if (text_at(now, "state") == "Succeeded" || text_at(now, "state") == "Failed")
            break;
        pause_between_looks(until_next_look(since));
    }
    return std::optional<double>();
}

Result<double> until_running(const AdminClient& client, const std::string& name,
                             Clock::time_point since) {
    auto end = Clock::now() + kRunningMax;
    for (;;) {
        BERTH_ASSIGN(json::object now, instance_of(client, name));
        std::string state = text_at(now, "state");
        if (state == "Running")
            return milliseconds_since(since);
        if (state == "Failed" || state == "Succeeded")
            return fail(ErrorCode::kFailedPrecondition,
                        fmt::format("instance '{}' is {} ({}): the bench needs one that goes on",
                                    name, state, text_at(now, "message")),
                        "InstanceEnded");
        if (Clock::now() > end)
            return fail(ErrorCode::kDeadlineExceeded,
                        fmt::format("instance '{}' is still {} after {} s", name, state,
                                    kRunningMax.count()));
        pause_between_looks(until_next_look(since));
    }
}

Result<double> cpu_seconds(uint64_t pid) {
    clockid_t clock{};
    timespec time{};
    if (int why = ::clock_getcpuclockid(static_cast<pid_t>(pid), &clock); why != 0)
        return fail(ErrorCode::kNotFound,
                    fmt::format("the CPU clock of process {}: {}", pid, std::strerror(why)));
    if (::clock_gettime(clock, &time) != 0)
        return fail_errno(fmt::format("the CPU time of process {}", pid));
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

Result<std::vector<double>> round_trips(const AdminClient& client, int rounds) {
    std::vector<double> trips;
    for (int round = 0; round < rounds; ++round) {
        auto began = Clock::now();
        BERTH_TRY(client.get("/version"));
        trips.push_back(milliseconds_since(began));
    }
    return trips;
}

Result<std::vector<double>> program_starts(const std::vector<std::string>& command, int rounds) {
    std::vector<double> starts;
    for (int round = 0; round < rounds; ++round) {
        SpawnOptions options;
        options.command = command;
        options.log_path = "/dev/null";
        auto began = Clock::now();
        BERTH_ASSIGN(Process process, Process::spawn(options));
        pollfd ended{process.pidfd(), POLLIN, 0};
        if (::poll(&ended, 1, 60'000) <= 0) {
            (void)process.signal(9);
            return fail(ErrorCode::kDeadlineExceeded,
                        fmt::format("{} did not end", fmt::join(command, " ")));
        }
        starts.push_back(milliseconds_since(began));
        (void)process.try_wait();
    }
    return starts;
}

} // namespace berth::cli::bench
