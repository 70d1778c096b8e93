// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/simulate.h"

#include "base/units.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace berth::cli {

void add_simulate(CLI::App& app, const std::string& format, std::function<Status()>& run) {
    auto options = std::make_shared<SimulateOptions>();
    SimulateOptions* o = options.get();
    CLI::App* command = app.add_subcommand(
        "simulate", "Try a policy on an arrival trace, or the node's decisions under faults");
    command->fallthrough(); // -o may follow the command
    command->callback([options, &format, &run] {
        run = [options, &format] {
            return simulate_node(format == "json"   ? Format::kJson
                                 : format == "yaml" ? Format::kYaml
                                                    : Format::kTable,
                                 *options);
        };
    });
    const auto bytes = [](const std::string& text) {
        auto read = parse_bytes(text);
        return read ? std::string() : read.error().message;
    };
    const auto duration = [](const std::string& text) {
        auto read = parse_duration(text);
        return read ? std::string() : read.error().message;
    };
    CLI::Option* trace = command->add_option(
        "--trace", o->trace,
        "A CSV of requests, with columns such as arrived_at, input_tokens, output_tokens");
    CLI::Option* policy = command->add_option(
        "--policy", o->policy, "The documents to try: a policy, its models and instances");
    trace->needs(policy);
    policy->needs(trace);
    command->add_option("--prefill", o->prefill, "Input tokens a second of an engine")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->add_option("--decode", o->decode, "Output tokens a second of a request")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->add_option("--weights", o->weights, "Size of each model's weights")
        ->check(bytes)
        ->capture_default_str();
    command->add_option("--gpus", o->gpus, "How many, where the documents name no devices")
        ->check(CLI::Range(1, 16))
        ->capture_default_str();
    command->add_option("--device-memory", o->device_memory, "Of each of them")
        ->check(bytes)
        ->capture_default_str();
    command->add_option("--start-time", o->start_time, "From an engine's start to Ready")
        ->check(duration)
        ->capture_default_str();
    command->add_option("--seeds", o->seeds, "Instead: as many nodes under faults, from seeds")
        ->excludes(trace);
    command->add_option("--events", o->events, "Of each, until faults cease")
        ->capture_default_str();
    command->add_option("--first-seed", o->first_seed, "Where to begin")->capture_default_str();
    command->add_option("--replay", o->replay, "Instead: one of those again, as it was printed")
        ->excludes(trace);
}

} // namespace berth::cli
