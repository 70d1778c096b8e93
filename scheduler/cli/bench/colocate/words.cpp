// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/words.h"

#include "base/units.h"
#include "scheduler/cli/bench/colocate/phases.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace berth::cli::bench {

namespace {

std::string check_bytes(const std::string& text) {
    const auto bytes = parse_bytes(text);
    return bytes ? std::string() : bytes.error().message;
}

void add_load(CLI::App& command, ColocateOptions& options) {
    command.add_option("--trace", options.trace,
                       "Requests' times and lengths: CSV with TIMESTAMP,ContextTokens,"
                       "GeneratedTokens; without it they are drawn");
    command.add_option("--trace-row", options.trace_row, "The first row of it to use")
        ->capture_default_str();
    command.add_option("--arrivals", options.arrivals,
                       "trace, poisson, or gamma[:SHAPE] (below 1: bursts); default: trace if "
                       "there is one, else poisson");
    command.add_option("--seed", options.seed, "Of all that is drawn")->capture_default_str();
    command.add_option("--requests", options.requests, "Online requests of each phase")
        ->check(CLI::Range(2, 100'000))
        ->capture_default_str();
    command
        .add_option("--busy", options.busy_percent,
                    "The per cent of the time that online works when it is alone")
        ->check(CLI::Range(1.0, 99.0))
        ->capture_default_str();
    command
        .add_option("--phase-seconds", options.phase_seconds,
                    "Requests come within it; token counts are scaled to the busy share")
        ->check(CLI::Range(0.5, 3600.0))
        ->capture_default_str();
    command
        .add_option("--token-scale", options.token_scale,
                    "Scale token counts by this instead, and the time to the busy share")
        ->check(CLI::Range(0.0, 1000.0));
    command
        .add_option("--prompt-scale", options.prompt_scale,
                    "Scale prompts by this, so that only what is generated is fitted")
        ->check(CLI::Range(0.0, 1000.0));
    command.add_flag("--fresh-connections", options.fresh_connections,
                     "A new connection for each request instead of kept-alive ones");
}

void add_engines(CLI::App& command, ColocateOptions& options) {
    command.add_option("--memory", options.memory, "Each engine's KV memory and work space")
        ->check(check_bytes, "BYTES")
        ->capture_default_str();
    command.add_option("--engine-args", options.engine_args, "More words for both engines");
    command.add_option("--batch-args", options.batch_args,
                       "More words for the batch engine: \"--max-batch 64\"");
    command.add_option("--batch", options.batch,
                       "What batch answers: JSONL in OpenAI's batch format, of the model 'model'; "
                       "default: generated");
    command.add_option("--batch-seconds", options.batch_seconds, "Of the phase batch-alone")
        ->check(CLI::Range(0.5, 3600.0))
        ->capture_default_str();
    command
        .add_option("--share", options.share_percent,
                    "batchShareWhenBusy of the phase gate-share, per cent")
        ->check(CLI::Range(1.0, 100.0))
        ->capture_default_str();
    command
        .add_option("--slo-factor", options.slo_factor,
                    "The latency targets, as a multiple of p99 alone")
        ->check(CLI::Range(1.0, 100.0))
        ->capture_default_str();
}

} // namespace

void add_colocate_words(CLI::App& command, ColocateOptions& options) {
    command.add_option("--model", options.model, "A checkpoint's folder")->required();
    command.add_option("--device", options.device, "auto (the first GPU), host, or a GPU's UUID")
        ->capture_default_str();
    command.add_option("--bin", options.programs,
                       "Where berthd, berth-engine and the others lie; default: beside this one");
    command.add_option("--phases", options.phases,
                       fmt::format("Some of {}, divided by commas", all_phase_names()));
    command.add_option("--out", options.out, "A folder for raw samples, plots and logs");
    add_load(command, options);
    add_engines(command, options);
    command.add_option("--resamples", options.resamples, "Of the bootstrap intervals")
        ->check(CLI::Range(100, 100'000))
        ->capture_default_str();
    command
        .add_option("--time-limit", options.time_limit,
                    "Seconds in all: phases that would exceed it are left out, and said so")
        ->check(CLI::Range(0.0, 1e6));
}

} // namespace berth::cli::bench
