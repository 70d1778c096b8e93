// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/arguments.h"

#include "base/log.h"
#include "base/units.h"
#include "scheduler/cli/bench/bench.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

namespace berth::cli {

namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  berth status                                  the node at a glance\n"
    "  berth get instances -o json                   for programs\n"
    "  berth describe instance nightly               all of one, with its start-up phases\n"
    "  berth preempt nightly --mode Offload --wait   back when the bytes are free\n"
    "  berth resume nightly --wait\n"
    "  berth load /models/qwen3-8b --wait            with its progress\n"
    "  berth plan weights /models/qwen3-8b --tp 2    what each rank would get\n"
    "  berth apply -f policy.yaml                    change the policy of a running node\n"
    "  berth events --follow\n"
    "  berth bench attach --model qwen3-8b --json\n"
    "\nExit status: 0 done, 1 refused or failed, 2 wrong usage, 3 berthd does not answer.";

// What the options write into; shared by the commands that are made of it.
struct Words {
    std::string admin;
    std::string format = "table";
    std::string kind, name;
    EventOptions events;
    ChangeOptions change;
    PlanOptions plan;
    std::vector<std::string> files;
    bench::Options bench;
    std::function<Status()> run;

    Format chosen_format() const {
        return format == "json" ? Format::kJson : format == "yaml" ? Format::kYaml : Format::kTable;
    }
    Session session() const {
        const char* token = std::getenv("BERTH_ADMIN_TOKEN");
        return Session{AdminClient(endpoint_of(admin.empty() ? default_admin() : admin),
                                   token != nullptr ? token : ""),
                       chosen_format()};
    }
};
using WordsPtr = std::shared_ptr<Words>;

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const WordsPtr& words, std::function<Status(const Session&)> run) {
    CLI::App* command = app.add_subcommand(name, description);
    command->fallthrough(); // -o and --admin may follow the command
    Words* kept = words.get();
    command->callback(
        [kept, run = std::move(run)] { kept->run = [kept, run] { return run(kept->session()); }; });
    return command;
}

std::string check_duration(const std::string& text) {
    auto duration = parse_duration(text);
    return duration ? "" : duration.error().message;
}

std::string check_kind(const std::string& word) {
    for (const char* kind : {"instance", "device", "weight", "operation", "decision"})
        if (word == kind || word == std::string(kind) + "s")
            return "";
    return "known kinds: instances, devices, weights, operations, decisions";
}

void add_looks(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    add_command(app, "status", "The node at a glance: devices, weights, instances", words,
                show_status);
    CLI::App* list = add_command(app, "get", "List things, or one of them", words,
                                 [w](const Session& s) { return get(s, w->kind, w->name); });
    list->add_option("kind", w->kind, "instances, devices, weights, operations or decisions")
        ->required()
        ->check(check_kind);
    list->add_option("name", w->name, "Name or id; of weights also the start of an id or a model");
    CLI::App* one =
        add_command(app, "describe", "All about one thing, with phases' times and its events",
                    words, [w](const Session& s) { return describe(s, w->kind, w->name); });
    one->add_option("kind", w->kind, "instance, device, weight, operation or decision")
        ->required()
        ->check(check_kind);
    one->add_option("name", w->name, "Name or id")->required();
    CLI::App* told = add_command(app, "events", "What happened, oldest first", words,
                                 [w](const Session& s) { return events(s, w->events); });
    told->add_option("--since", w->events.since, "Only events after this revision (0: all kept)")
        ->check(CLI::NonNegativeNumber);
    told->add_flag("-f,--follow", w->events.follow, "Go on with new ones as they happen");
    add_command(app, "doctor", "Check the node, and say what to do about what is wrong", words,
                doctor);
}

void add_changes(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    auto common = [w](CLI::App* command, const char* what) {
        command->add_option("name", w->change.name, what)->required();
        command->add_option("--reason", w->change.reason, "Why, for the records");
        command->add_option("--request-id", w->change.request_id,
                            "A repetition with the same id does nothing again");
        command->add_flag("--wait", w->change.wait, "Until it is done, then show its phases");
    };
    CLI::App* stop = add_command(app, "preempt", "Make an instance give way", words,
                                 [w](const Session& s) { return preempt(s, w->change); });
    common(stop, "The instance");
    stop->add_option("--mode", w->change.mode,
                     "Pause, Offload or Evict; the policy's first if none")
        ->check(CLI::IsMember({"Pause", "Shrink", "Offload", "Evict"}));
    stop->add_option("--grace-period", w->change.grace, "How long it may finish: 200ms, 5s")
        ->check(check_duration);
    stop->add_flag("--dry-run", w->change.dry_run, "Say what would be done");
    CLI::App* again = add_command(app, "resume", "Let a preempted instance go on", words,
                                  [w](const Session& s) { return resume(s, w->change); });
    common(again, "The instance");
    again->add_flag("--dry-run", w->change.dry_run, "Say what would be done");
    CLI::App* in = add_command(app, "load", "Load a model's weights, once for all", words,
                               [w](const Session& s) { return load(s, w->change); });
    common(in, "A Model of the policy, or a checkpoint's folder (with a '/')");
    in->add_option("--device", w->change.device, "The device; the node's first if none");
    in->add_option("--dtype", w->change.dtype, "auto, bfloat16, float32, ...");
    in->add_option("--quantization", w->change.quantization,
                   "none, or fp8-block: FP8 by blocks of 128 x 128 on the way in");
    for (const char* verb : {"pin", "unpin", "evict"}) {
        CLI::App* change = add_command(
            app, verb,
            verb[0] == 'e'   ? "Free a weight set that nobody uses"
            : verb[0] == 'p' ? "Keep a weight set, whoever needs room"
                             : "Let a weight set go when room is needed",
            words, [w, verb](const Session& s) { return change_weights(s, verb, w->change); });
        change->add_option("weights", w->change.name, "Id, the start of one, or a model")
            ->required();
        change->add_flag("--dry-run", w->change.dry_run, "Say what would be done");
        if (verb[0] == 'e')
            change->add_flag("--drop", w->change.drop,
                             "Remove its copies in host memory and on the disk too");
    }
    CLI::App* check =
        add_command(app, "verify", "Compare a weight set's bytes with its checksums", words,
                    [w](const Session& s) { return verify(s, w->change.name, w->change.deep); });
    check->add_flag("--deep", w->change.deep,
                    "Compare a hash of all bytes with the one made at the load too");
    check->add_option("weights", w->change.name, "Id, the start of one, or a model")->required();
}

void add_policy(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    CLI::App* put =
        add_command(app, "apply", "Add to the node's policy, or change it", words,
                    [w](const Session& s) { return apply(s, w->files, w->change.dry_run); });
    put->add_option("-f,--file,files", w->files, "YAML files; '-' is stdin")->required();
    put->add_flag("--dry-run", w->change.dry_run, "Print the policy that would hold");
    CLI::App* check =
        app.add_subcommand("validate", "Check YAML files and print what they mean in full");
    check->fallthrough();
    check->add_option("-f,--file,files", w->files, "Files, and folders of them")->required();
    check->callback([w] { w->run = [w] { return validate(w->chosen_format(), w->files); }; });
}

void add_plan(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    CLI::App* plan = app.add_subcommand("plan", "What would happen, without doing it");
    plan->fallthrough();
    plan->require_subcommand(1);
    CLI::App* weights = plan->add_subcommand(
        "weights", "Check a checkpoint and show what each rank would get of it");
    weights->fallthrough();
    weights->add_option("checkpoint", w->plan.path, "Its folder, or one safetensors file")
        ->required();
    weights->add_option("--tp", w->plan.parallelism.tensor, "Ranks that share each layer");
    weights->add_option("--pp", w->plan.parallelism.pipeline, "Pipeline stages");
    weights->add_option("--dp", w->plan.parallelism.data, "Replicas that share the experts");
    weights->add_option("--ep", w->plan.parallelism.expert, "Groups with experts of their own");
    weights->add_option("--quantization", w->plan.quantization, "none or fp8-block")
        ->capture_default_str();
    weights->add_option("--dtype", w->plan.dtype, "auto, bfloat16 or float32")
        ->capture_default_str();
    weights->callback([w] { w->run = [w] { return plan_weights(w->chosen_format(), w->plan); }; });
}

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
        for (const std::string& option : one.options) {
            if (option == "instance")
                command->add_option("--instance", w->bench.instance, "The instance")->required();
            else if (option == "mode")
                command->add_option("--mode", w->bench.mode, "Pause, Offload or Evict")
                    ->check(CLI::IsMember({"Pause", "Offload", "Evict"}));
            else if (option == "weights") {
                command->add_option("--model", w->bench.model, "A model's name");
                command->add_option("--weights", w->bench.weights, "Or a weight set's id");
                command->add_option("--socket", w->bench.socket, "Where engines attach")
                    ->envname("BERTH_SOCKET");
            } else if (option == "checkpoint") {
                command->add_option("--checkpoint", w->bench.checkpoint, "A model's folder")
                    ->required();
                command->add_option("--device", w->bench.device, "host-N, cuda or a GPU's UUID")
                    ->capture_default_str();
            } else if (option == "image") {
                command->add_option("--image-dir", w->bench.image_dir,
                                    "Where the image is written for the time of the bench; "
                                    "default: beside the checkpoint");
            } else if (option == "config") {
                command->add_option("--config", w->bench.config, "The file to start berthd with")
                    ->required();
                command->add_option("--berthd", w->bench.berthd, "The program to start");
                command->add_option("--log", w->bench.log, "Where its output goes");
            }
        }
    }
}

} // namespace

Invocation read_arguments(int argc, char** argv) {
    auto words = std::make_shared<Words>();
    CLI::App app("Berth shares model weights between the engines of one node, and lets batch give\n"
                 "way to online work. This program looks at a node and changes it.",
                 "berth");
    app.footer(kExamples);
    app.require_subcommand(1);
    app.set_version_flag("--version", std::string("berth ") + BERTH_VERSION);
    app.add_option("--admin", words->admin,
                   "berthd's admin socket: a path, unix:/path, or http://host:port with the token "
                   "in BERTH_ADMIN_TOKEN; default " +
                       default_admin())
        ->envname("BERTH_ADMIN");
    app.add_option("-o,--output", words->format, "table, json or yaml")
        ->check(CLI::IsMember({"table", "json", "yaml"}));
    add_looks(app, words);
    add_changes(app, words);
    add_policy(app, words);
    add_plan(app, words);
    add_bench(app, words);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        int code = app.exit(error);
        return {{}, code == 0 ? 0 : kExitUsage};
    }
    if (auto started = log::start("berth", "warn"); !started)
        return {[started] { return started; }, kExitRefused};
    return {[words] { return words->run(); }, 0};
}

} // namespace berth::cli
