// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "cache/memory/device.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/node_calls.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

namespace berth::cli::bench {

namespace {

constexpr int kFloorRounds = 5;
constexpr std::chrono::seconds kTokenMax{20};
// An engine reports right behind its answer to a command.
constexpr std::chrono::milliseconds kLastReport{20};
constexpr int kLastReports = 50;
// Before each round, at most: a preemption comes at any moment of a step, not right behind the
// token that the round before has waited for.
constexpr int kMomentMaxUs = 20'000;

struct Cycles {
    std::vector<double> preempt, resume, token, save_rate;
    std::vector<double> free_floor, back_floor; // the same bytes, by the device's own calls
    std::map<std::string, std::vector<double>> preempt_phases, resume_phases;
    std::string device;
    std::string no_floor; // why the memory floor could not be measured
    uint64_t bytes_freed = 0, bytes_saved = 0, bytes_moved = 0; // the most of a round
    uint64_t rounds_with_bytes_back = 0;
    std::mt19937 moments; // by its own seed: the same in each run
};

void add_phases(const json::object& operation, std::map<std::string, std::vector<double>>& phases) {
    const auto* listed = operation.if_contains("phases");
    if (listed == nullptr || !listed->is_array())
        return;
    for (const json::value& phase : listed->get_array())
        if (phase.is_object())
            phases[text_at(phase.get_object(), "name")].push_back(
                real_at(phase.get_object(), "ms"));
}

// What freeing and getting these bytes costs when nobody else is asked. While the instance is
// suspended its bytes are free, so there is room for it.
Status measure_memory_floor(const std::string& device_id, uint64_t bytes, Cycles& cycles) {
    BERTH_ASSIGN(std::unique_ptr<Device> device, open_device(device_id));
    BERTH_ASSIGN(std::unique_ptr<GrantArena> arena, device->create_grant(bytes));
    for (int round = 0; round < kFloorRounds; ++round) {
        auto began = Clock::now();
        BERTH_TRY(arena->resize(bytes));
        cycles.back_floor.push_back(milliseconds_since(began));
        // Host pages exist once they are written; a device's do from the start.
        if (device->capabilities().cpu_addressable)
            std::memset(arena->data(), 1, arena->bytes());
        began = Clock::now();
        BERTH_TRY(arena->resize(0));
        cycles.free_floor.push_back(milliseconds_since(began));
    }
    return {};
}

// What was copied to host memory, and how fast (engine.save is the copy, pinning included).
void add_saved(const json::object& operation, Cycles& cycles) {
    const uint64_t saved = number_at(operation, "bytesSaved");
    cycles.bytes_saved = std::max(cycles.bytes_saved, saved);
    cycles.bytes_moved = std::max(cycles.bytes_moved, number_at(operation, "bytesMoved"));
    const auto* phases = operation.if_contains("phases");
    if (saved == 0 || phases == nullptr || !phases->is_array())
        return;
    for (const json::value& phase : phases->get_array())
        if (phase.is_object() && text_at(phase.get_object(), "name") == "engine.save")
            if (const double ms = real_at(phase.get_object(), "ms"); ms > 0)
                cycles.save_rate.push_back(static_cast<double>(saved) / ms / 1e6);
}

// The instance once no late report of what it did before changes its count of tokens.
Result<json::object> at_rest(const AdminClient& client, const std::string& name) {
    BERTH_ASSIGN(json::object shown, instance_of(client, name));
    for (int look = 0; look < kLastReports; ++look) {
        pause_between_looks(kLastReport);
        const uint64_t before = tokens_done(shown);
        BERTH_ASSIGN(shown, instance_of(client, name));
        if (tokens_done(shown) == before)
            break;
    }
    return shown;
}

Status one_cycle(const AdminClient& client, const Options& options, Cycles& cycles) {
    const std::string target = "/v1/instances/" + http::percent_encode(options.instance);
    BERTH_ASSIGN(json::object before, instance_of(client, options.instance));
    if (text_at(before, "state") != "Running")
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("instance '{}' is {}; a cycle begins with one that is Running",
                                options.instance, text_at(before, "state")),
                    "NotRunning");
    cycles.device = text_at(before, "device");
    pause_between_looks(std::chrono::microseconds(
        std::uniform_int_distribution<int>(0, kMomentMaxUs)(cycles.moments)));
    BERTH_ASSIGN(uint64_t free_before, free_bytes(client, cycles.device));
    BERTH_ASSIGN(Finished stopped, run_to_end(client, target + ":preempt",
                                              {{"mode", options.mode}, {"reason", "berth bench"}}));
    BERTH_ASSIGN(uint64_t free_after, free_bytes(client, cycles.device));
    cycles.preempt.push_back(stopped.wall_ms);
    add_phases(stopped.operation, cycles.preempt_phases);
    add_saved(stopped.operation, cycles);
    uint64_t freed = number_at(stopped.operation, "bytesFreed");
    cycles.bytes_freed = std::max(cycles.bytes_freed, freed);
    cycles.rounds_with_bytes_back += free_after >= free_before + freed ? 1 : 0;
    // Whatever comes of it, the instance is resumed.
    if (freed > 0 && cycles.free_floor.empty() && cycles.no_floor.empty() && free_after >= freed)
        if (auto measured = measure_memory_floor(cycles.device, freed, cycles); !measured)
            cycles.no_floor = measured.error().message;

    BERTH_ASSIGN(json::object parked, at_rest(client, options.instance));
    auto began = Clock::now();
    BERTH_ASSIGN(Finished back,
                 run_to_end(client, target + ":resume", {{"reason", "berth bench"}}));
    BERTH_ASSIGN(double running_ms, until_running(client, options.instance, began));
    cycles.resume.push_back(running_ms);
    add_phases(back.operation, cycles.resume_phases);
    // Without work there is no token to wait for.
    if (tokens_done(parked) > 0) {
        // A new process counts from zero.
        const uint64_t done = options.mode == "Evict" ? 0 : tokens_done(parked);
        BERTH_ASSIGN(std::optional<double> token,
                     until_token(client, options.instance, done, began, kTokenMax));
        if (token)
            cycles.token.push_back(*token);
    }
    return {};
}

json::object medians(const std::map<std::string, std::vector<double>>& phases) {
    json::object shown;
    for (const auto& [name, samples] : phases)
        shown[name] = percentile(samples, 50);
    return shown;
}

} // namespace

Status preempt(const AdminClient& client, const Options& options) {
    Cycles cycles;
    int rounds = options.rounds_or(options.mode == "Evict" ? 5 : 20);
    for (int round = 0; round < rounds; ++round)
        BERTH_TRY(one_cycle(client, options, cycles));
    BERTH_ASSIGN(std::vector<double> trips, round_trips(client, 50));
    const bool memory = cycles.no_floor.empty() && !cycles.free_floor.empty();
    std::string trip = "one round trip by the admin socket, in this run";
    if (!cycles.no_floor.empty())
        trip += " (the device's own calls failed here: " + cycles.no_floor + ")";
    json::object facts{{"instance", options.instance},
                       {"mode", options.mode},
                       {"device", cycles.device},
                       {"bytesFreed", cycles.bytes_freed},
                       {"bytesSaved", cycles.bytes_saved},
                       {"bytesMoved", cycles.bytes_moved},
                       {"roundsWithBytesBack", cycles.rounds_with_bytes_back}};
    Figure stopped{"preempt",
                   "preempt",
                   cycles.preempt,
                   memory ? cycles.free_floor : trips,
                   memory ? "unmapping and freeing the same bytes by the device's calls alone, in "
                            "this run"
                          : trip,
                   "request to berthd until its reply that the bytes are free",
                   facts};
    stopped.facts["phasesMs"] = medians(cycles.preempt_phases);
    Figure resumed{"resume",
                   "resume",
                   cycles.resume,
                   memory ? cycles.back_floor : trips,
                   memory ? "allocating and mapping the same bytes by the device's calls alone, in "
                            "this run"
                          : trip,
                   options.mode == "Evict"
                       ? "request to berthd until Running again: a new process, its context, "
                         "libraries and warm-up"
                       : "request to berthd until Running again",
                   facts};
    resumed.facts["phasesMs"] = medians(cycles.resume_phases);
    std::vector<Figure> figures{stopped, resumed};
    if (!cycles.save_rate.empty()) {
        figures.push_back({"preempt",
                           "save",
                           cycles.save_rate,
                           {},
                           "none",
                           "KV that the engine has copied to host memory, by the time of its phase "
                           "engine.save",
                           facts});
        figures.back().unit = "GB/s";
    }
    if (!cycles.token.empty())
        figures.push_back({"resume",
                           "token",
                           cycles.token,
                           {},
                           "none",
                           "request to resume after " + options.mode +
                               " until berthd has the instance's report of a new token (an engine "
                               "reports the first one at once)",
                           facts});
    print_figures(figures, options.json);
    if (cycles.rounds_with_bytes_back != cycles.preempt.size())
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("in {} of {} rounds less came back than was freed (or another "
                                "instance took it)",
                                cycles.preempt.size() - cycles.rounds_with_bytes_back,
                                cycles.preempt.size()),
                    "ShortReclaim");
    return {};
}

} // namespace berth::cli::bench
