// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/cycles/words.h"

#include "base/units.h"

#include <CLI/CLI.hpp>

namespace berth::cli::bench {

void add_cycles_words(CLI::App& command, CyclesOptions& options) {
    const auto check_bytes = [](const std::string& text) {
        const auto bytes = parse_bytes(text);
        return bytes ? std::string() : bytes.error().message;
    };
    command.add_option("--model", options.model, "A checkpoint's folder")
        ->required()
        ->check(CLI::ExistingDirectory);
    command.add_option("--device", options.device, "auto (the first GPU), host, or a GPU's UUID")
        ->capture_default_str();
    command.add_option("--bin", options.programs,
                       "Where berthd and berth-engine lie; default: beside this program");
    command.add_option("--memory", options.memory, "Each engine's KV memory and work space")
        ->check(check_bytes, "BYTES")
        ->capture_default_str();
    command.add_option("--engine-args", options.engine_args,
                       "More words for both engines, beside --batch-invariant");
    command.add_flag("--fast", options.fast,
                     "Compute as the fast path does: without --batch-invariant, one sequence at a "
                     "time, and what a Shrink or an Offload takes is always saved");
    command.add_option("--clients", options.clients, "That ask online, each now and then")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    command.add_option("--cycles", options.cycles, "How many preemptions")
        ->check(CLI::Range(1, 100'000))
        ->capture_default_str();
    command.add_option("--seed", options.seed, "Of their order, and of all requests")
        ->capture_default_str();
    command.add_option("--prompts", options.prompts, "Different ones, asked over and over")
        ->check(CLI::Range(1, 10'000))
        ->capture_default_str();
    command.add_option("--tokens", options.tokens, "Of each answer")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    command.add_option("--work-ms", options.work_ms, "Undisturbed work before each, at most")
        ->check(CLI::Range(0, 60'000))
        ->capture_default_str();
    command.add_flag("--faults,!--no-faults", options.faults,
                     "One fault of each kind in between (default)");
    command.add_option("--time-limit", options.time_limit,
                       "Seconds from the start after which no further cycle begins; the last check "
                       "takes up to 40 more; 0: none");
    command.add_option("--out", options.out, "A folder for logs and batch's answers");
}

} // namespace berth::cli::bench
