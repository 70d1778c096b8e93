// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"
#include "base/units.h"
#include "cache/weights/manifest.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/guest.h"
#include "scheduler/cli/bench/node_calls.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <poll.h>
#include <unistd.h>

namespace berth::cli::bench {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{1};
constexpr std::chrono::seconds kBackMax{30};

// Of each set: when it was loaded and how much was read for that. A set that was loaded again has
// another time.
struct LoadedSet {
    std::string loaded_at;
    uint64_t bytes_read = 0;
};
using Loaded = std::map<std::string, LoadedSet>;

Result<Loaded> loaded_sets(const AdminClient& client) {
    BERTH_ASSIGN(json::value reply, client.get("/v1/weights"));
    BERTH_ASSIGN(json::array items, items_of(reply));
    Loaded loaded;
    for (const json::value& value : items)
        if (value.is_object())
            loaded[text_at(value.get_object(), "id")] = {
                text_at(value.get_object(), "loadedAt"),
                number_at(value.get_object(), "bytesRead")};
    return loaded;
}

uint64_t bytes_read_again(const Loaded& before, const Loaded& after) {
    uint64_t bytes = 0;
    for (const auto& [id, set] : after)
        if (auto was = before.find(id);
            was == before.end() || was->second.loaded_at != set.loaded_at)
            bytes += set.bytes_read;
    return bytes;
}

struct Recovery {
    std::vector<double> attach; // from the kill until a guest has all mapped
    std::vector<double> node;   // what berthd itself says: recoverMs
    uint64_t bytes_read = 0;
    uint64_t sets_lost = 0;
};

Status end_daemon(const AdminClient& client) {
    BERTH_ASSIGN(json::value node, client.get("/v1/node"));
    auto pid = static_cast<int>(node.is_object() ? number_at(node.get_object(), "pid") : 0);
    BERTH_ASSIGN(ProcessId id, process_id(pid));
    BERTH_ASSIGN(Process daemon, Process::adopt(id));
    BERTH_TRY(daemon.signal(SIGKILL));
    pollfd ended{daemon.pidfd(), POLLIN, 0};
    if (::poll(&ended, 1, 10'000) <= 0)
        return fail(ErrorCode::kDeadlineExceeded,
                    fmt::format("berthd (pid {}) is still there 10 s after SIGKILL", pid));
    return {};
}

// A guest with the set mapped and its manifest opened.
Status attach_once(const Target& target, Device& device) {
    BERTH_ASSIGN(Guest guest, Guest::connect(target.socket));
    BERTH_ASSIGN(Guest::Attached got, guest.attach(target));
    std::vector<uint64_t> sizes;
    std::vector<Mapping> mappings;
    for (const Segment& segment : got.segments) {
        sizes.push_back(segment.bytes);
        BERTH_ASSIGN(Mapping mapping, device.map_read_only(segment));
        mappings.push_back(std::move(mapping));
    }
    BERTH_TRY(Manifest::open(got.manifest, sizes));
    return {};
}

Status one_round(const AdminClient& client, const SpawnOptions& how, const Target& target,
                 Device& device, Recovery& recovery) {
    BERTH_ASSIGN(Loaded before, loaded_sets(client));
    auto began = Clock::now();
    BERTH_TRY(end_daemon(client));
    BERTH_ASSIGN(Process daemon, Process::spawn(how));
    for (;;) {
        auto attached = attach_once(target, device);
        if (attached)
            break;
        if (auto status = daemon.try_wait(); status || Clock::now() - began > kBackMax)
            return fail(ErrorCode::kUnavailable,
                        fmt::format("the new berthd {}: {}; its log is {}",
                                    status ? describe_exit(*status) : "takes no attach in 30 s",
                                    attached.error().message, how.log_path),
                        "NotRecovered");
        pause_between_looks(kLookEvery);
    }
    recovery.attach.push_back(milliseconds_since(began));
    BERTH_ASSIGN(json::value node, client.get("/v1/node"));
    if (node.is_object())
        recovery.node.push_back(real_at(node.get_object(), "recoverMs"));
    BERTH_ASSIGN(Loaded after, loaded_sets(client));
    recovery.bytes_read += bytes_read_again(before, after);
    for (const auto& [id, set] : before)
        recovery.sets_lost += after.contains(id) ? 0 : 1;
    return {};
}

} // namespace

Status recover(const AdminClient& client, const Options& options) {
    BERTH_ASSIGN(Target target, resident_target(client, options));
    BERTH_ASSIGN(std::unique_ptr<Device> device, open_device(target.device));
    BERTH_TRY(device->synchronize());
    SpawnOptions how;
    const std::string program =
        options.berthd.empty() ? program_directory() + "/berthd" : options.berthd;
    how.command = {program, "--config", std::filesystem::absolute(options.config).string()};
    how.log_path = options.log.empty() ? (std::filesystem::temp_directory_path() /
                                          fmt::format("berthd-bench-{}.log", ::getpid()))
                                             .string()
                                       : std::filesystem::absolute(options.log).string();
    BERTH_TRY(program_starts({program, "--config", how.command.back(), "--check"}, 1));
    BERTH_ASSIGN(std::vector<double> floor, program_starts({program, "--version"}, 5));
    Recovery recovery;
    for (int round = 0; round < options.rounds_or(10); ++round)
        BERTH_TRY(one_round(client, how, target, *device, recovery));
    json::object facts{{"device", target.device},
                       {"bytes", target.bytes},
                       {"bytesReadAgain", recovery.bytes_read},
                       {"setsLost", recovery.sets_lost},
                       {"log", how.log_path}};
    const std::string start = "starting and ending berthd --version, in this run: process start";
    print_figures({{"recover", "recover", recovery.attach, floor, start,
                    "SIGKILL of berthd until a guest has the set mapped: its end, the start of a "
                    "new one, connect, attach; without the guest's own start and context",
                    facts},
                   {"recover", "node", recovery.node, floor, start,
                    "berthd's own start until it is ready, as it says itself", json::object()}},
                  options.json);
    if (recovery.bytes_read > 0 || recovery.sets_lost > 0)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("{} were read again and {} weight sets lost: a recovery does "
                                "neither",
                                format_bytes(recovery.bytes_read), recovery.sets_lost),
                    "RecoveredShort");
    return {};
}

} // namespace berth::cli::bench
