// SPDX-License-Identifier: Apache-2.0
// Loads a checkpoint with berth-loader alone, as berthd starts it, again and again. No node is
// asked.
#include "scheduler/cli/bench/bench.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/load_floor.h"
#include "scheduler/cli/bench/loader_run.h"
#include "scheduler/cli/output.h"

#include <fmt/format.h>

namespace berth::cli::bench {

namespace {

Result<Loaded> load_checkpoint(const Options& options, const std::string& quantization) {
    return run_loader({"--model", options.checkpoint, "--device", options.device, "--quantization",
                       quantization});
}

struct Rounds {
    std::vector<double> wall, transfer;
    json::object facts;
    void add(const Loaded& loaded) {
        wall.push_back(loaded.wall_rate());
        transfer.push_back(loaded.transfer_rate());
        facts = loaded.outcome;
    }
};

const char* kTransferCovers =
    "GB/s of the checkpoint's bytes, from the first read until all are placed: pinning of the "
    "ring is in it; process start, validation, device opening and checksums are not";
const char* kWallCovers = "the same bytes over all of berth-loader, its start to its end: process "
                          "start, validation, device opening, checksums, sealing are in it";

json::object facts_of(const Options& options, const Rounds& rounds) {
    json::object facts{{"checkpoint", options.checkpoint}, {"device", options.device}};
    for (const char* field : {"bytesRead", "filesystem", "reader", "phases"})
        if (const json::value* value = rounds.facts.if_contains(field))
            facts[field] = *value;
    return facts;
}

} // namespace

Status load_warm(const AdminClient&, const Options& options) {
    BERTH_ASSIGN(std::vector<std::string> files, checkpoint_files(options.checkpoint));
    BERTH_TRY(warm_pages(files));
    BERTH_ASSIGN(double floor, copy_rate(options.device));
    Rounds rounds;
    for (int round = 0; round < options.rounds_or(5); ++round) {
        BERTH_ASSIGN(Loaded loaded, load_checkpoint(options, "none"));
        rounds.add(loaded);
    }
    const std::string floor_is = "copies from a pinned buffer onto the device, in this run";
    json::object facts = facts_of(options, rounds);
    print_figures(
        {{"load-warm",
          "transfer",
          rounds.transfer,
          {floor},
          floor_is,
          kTransferCovers,
          facts,
          "GB/s"},
         {"load-warm", "whole", rounds.wall, {floor}, floor_is, kWallCovers, facts, "GB/s"}},
        options.json);
    return {};
}

Status load_cold(const AdminClient&, const Options& options) {
    BERTH_ASSIGN(std::vector<std::string> files, checkpoint_files(options.checkpoint));
    std::vector<double> floor;
    std::string floor_is;
    Rounds rounds;
    for (int round = 0; round < options.rounds_or(3); ++round) {
        BERTH_TRY(drop_pages(files));
        if (Result<DiskRate> rate = direct_read_rate(files)) {
            floor.push_back(rate->gb_per_s);
            floor_is = fmt::format("direct reads of the same files, best of 1, 2, 4, 8 streams "
                                   "(last: {}), before each round",
                                   rate->streams);
        } else {
            floor_is = "none: " + rate.error().message;
        }
        BERTH_TRY(drop_pages(files));
        BERTH_ASSIGN(Loaded loaded, load_checkpoint(options, "none"));
        rounds.add(loaded);
    }
    json::object facts = facts_of(options, rounds);
    print_figures(
        {{"load-cold", "transfer", rounds.transfer, floor, floor_is, kTransferCovers, facts,
          "GB/s"},
         {"load-cold", "whole", rounds.wall, floor, floor_is, kWallCovers, facts, "GB/s"}},
        options.json);
    return {};
}

Status quantise(const AdminClient&, const Options& options) {
    BERTH_ASSIGN(std::vector<std::string> files, checkpoint_files(options.checkpoint));
    BERTH_TRY(warm_pages(files));
    std::vector<double> plain, plain_wall, quantised, quantised_wall;
    Rounds rounds;
    for (int round = 0; round < options.rounds_or(5); ++round) {
        BERTH_ASSIGN(Loaded as_stored, load_checkpoint(options, "none"));
        plain.push_back(as_stored.transfer_ms);
        plain_wall.push_back(as_stored.wall_ms);
        BERTH_ASSIGN(Loaded as_fp8, load_checkpoint(options, "fp8-block"));
        quantised.push_back(as_fp8.transfer_ms);
        quantised_wall.push_back(as_fp8.wall_ms);
        rounds.add(as_fp8);
    }
    const std::string floor_is = "the same load without quantisation, in turn, in this run";
    json::object facts = facts_of(options, rounds);
    print_figures({{"quantise", "transfer", quantised, plain, floor_is,
                    "first read until all is placed and quantised", facts},
                   {"quantise", "whole", quantised_wall, plain_wall, floor_is,
                    "berth-loader's start to its end", facts}},
                  options.json);
    return {};
}

} // namespace berth::cli::bench
