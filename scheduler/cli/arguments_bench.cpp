// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/words.h"
#include "scheduler/cli/bench/cycles/words.h"
#include "scheduler/cli/words.h"

#include <map>

namespace berth::cli {

namespace {

using bench::Options;

constexpr const char* kDeviceIs = "host-N, cuda or a GPU's UUID";

void add_instance(CLI::App& command, Options& options) {
    command.add_option("--instance", options.instance, "The instance")->required();
}

void add_mode(CLI::App& command, Options& options) {
    command.add_option("--mode", options.mode, "Pause, Offload or Evict")
        ->check(CLI::IsMember({"Pause", "Offload", "Evict"}));
}

void add_weights(CLI::App& command, Options& options) {
    command.add_option("--model", options.model, "A model's name");
    command.add_option("--weights", options.weights, "Or a weight set's id");
    command.add_option("--socket", options.socket, "Where engines attach")->envname("BERTH_SOCKET");
}

void add_checkpoint(CLI::App& command, Options& options) {
    command.add_option("--checkpoint", options.checkpoint, "A model's folder")->required();
    command.add_option("--device", options.device, kDeviceIs)->capture_default_str();
}

void add_memory(CLI::App& command, Options& options) {
    command
        .add_option("--memory", options.memory, "Of the grant; handles up to 1Gi that divide it")
        ->check(check_bytes)
        ->capture_default_str();
    command.add_option("--device", options.device, kDeviceIs)->capture_default_str();
}

void add_image(CLI::App& command, Options& options) {
    command.add_option("--image-dir", options.image_dir,
                       "Where the image is written for the time of the bench; default: beside the "
                       "checkpoint");
}

void add_daemon(CLI::App& command, Options& options) {
    command.add_option("--seconds", options.seconds, "Of each stretch of reads")
        ->check(CLI::Range(0.1, 600.0))
        ->capture_default_str();
    command.add_option("--devices", options.devices, "Of the node under decision")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    command.add_option("--instances", options.instances, "Likewise")
        ->check(CLI::Range(1, 3000))
        ->capture_default_str();
    command.add_option("--events", options.events, "That happen there")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
}

void add_failover(CLI::App& command, Options& options) {
    command.add_option("--context", options.context_tokens, "Tokens of each prompt")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
    command.add_option("--tokens", options.answer_tokens, "Of each answer")
        ->check(CLI::Range(8, 1'000'000))
        ->capture_default_str();
    command.add_flag("--exact", options.exact,
                     "Another text than undisturbed is an error (for engines with "
                     "--batch-invariant)");
}

void add_config(CLI::App& command, Options& options) {
    command.add_option("--config", options.config, "The file to start berthd with")->required();
    command.add_option("--berthd", options.berthd, "The program to start");
    command.add_option("--log", options.log, "Where its output goes");
}

// By the names that a bench gives the groups of its options.
const std::map<std::string, void (*)(CLI::App&, Options&)>& groups() {
    static const std::map<std::string, void (*)(CLI::App&, Options&)> known = {
        {"instance", add_instance},
        {"mode", add_mode},
        {"weights", add_weights},
        {"checkpoint", add_checkpoint},
        {"memory", add_memory},
        {"image", add_image},
        {"daemon", add_daemon},
        {"failover", add_failover},
        {"config", add_config},
        {"colocate",
         [](CLI::App& command, Options& options) {
             bench::add_colocate_words(command, options.colocate);
         }},
        {"cycles", [](CLI::App& command,
                      Options& options) { bench::add_cycles_words(command, options.cycles); }},
    };
    return known;
}

} // namespace

void add_bench(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    CLI::App* all = app.add_subcommand("bench", "Time a running node: figure, floor and ratio");
    all->fallthrough();
    all->require_subcommand(1);
    for (const bench::Bench& one : bench::all()) {
        CLI::App* command = add_command(*all, one.name, one.description, words,
                                        [w, run = one.run](const Session& s) {
                                            w->bench.json |= s.format == Format::kJson;
                                            return run(s.client, w->bench);
                                        });
        command->add_flag("--json", w->bench.json, "One JSON object a line");
        command->add_option("--rounds", w->bench.rounds, "How often; 0: the bench's own number")
            ->check(CLI::Range(0, 100'000));
        for (const std::string& group : one.options)
            groups().at(group)(*command, w->bench);
    }
}

} // namespace berth::cli
