// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/node_calls.h"

namespace berth::cli::bench {

namespace {

constexpr std::chrono::seconds kTokenMax{20};

struct Starts {
    std::vector<double> evict, running, token;
    json::array phases; // the start-up phases of each round
    std::string device;
};

Status one_round(const AdminClient& client, const Options& options, Starts& starts) {
    const std::string target = "/v1/instances/" + http::percent_encode(options.instance);
    BERTH_ASSIGN(json::object before, instance_of(client, options.instance));
    starts.device = text_at(before, "device");
    BERTH_ASSIGN(Finished evicted, run_to_end(client, target + ":preempt",
                                              {{"mode", "Evict"}, {"reason", "berth bench"}}));
    starts.evict.push_back(evicted.wall_ms);
    auto began = Clock::now();
    BERTH_ASSIGN(Finished resumed,
                 run_to_end(client, target + ":resume", {{"reason", "berth bench"}}));
    BERTH_ASSIGN(double running_ms, until_running(client, options.instance, began));
    starts.running.push_back(running_ms);
    if (tokens_done(before) > 0) {
        BERTH_ASSIGN(std::optional<double> token,
                     until_token(client, options.instance, 0, began, kTokenMax));
        if (token)
            starts.token.push_back(*token);
    }
    BERTH_ASSIGN(json::object after, instance_of(client, options.instance));
    if (const auto* phases = after.if_contains("phases"))
        starts.phases.push_back(*phases);
    return {};
}

} // namespace

Status start(const AdminClient& client, const Options& options) {
    Starts starts;
    for (int round = 0; round < options.rounds_or(5); ++round)
        BERTH_TRY(one_round(client, options, starts));
    std::vector<double> floor;
    std::string floor_is =
        "starting and ending berth-engine --help, in this run: process start and "
        "its libraries, no context, no warm-up";
    auto exec = program_starts({program_directory() + "/berth-engine", "--help"}, 5);
    if (exec)
        floor = std::move(*exec);
    else
        floor_is = "none: " + exec.error().message;
    json::object facts{{"instance", options.instance}, {"device", starts.device}};
    json::object with_phases = facts;
    with_phases["startPhasesMs"] = starts.phases;
    std::vector<Figure> figures{
        {"start", "running", starts.running, floor, floor_is,
         "request to resume an evicted instance until Running, weights resident: process start, "
         "libraries, context, attach and warm-up are in it",
         with_phases},
        {"start",
         "evict",
         starts.evict,
         {},
         "none",
         "request to evict until berthd's reply that the process has ended and its bytes are free",
         facts}};
    if (!starts.token.empty())
        figures.push_back({"start", "token", starts.token, floor, floor_is,
                           "the same until berthd has its report of the first token", facts});
    print_figures(figures, options.json);
    return {};
}

} // namespace berth::cli::bench
