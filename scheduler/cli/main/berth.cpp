// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "scheduler/cli/command.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <map>

// The words of the command line. Each subcommand's callback only notes what to run.
namespace berth::cli {

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kNotReachable = 3;

struct Words {
    std::string admin = default_admin_socket();
    std::string format = "table";
    std::string kind;
    std::string name;
    std::vector<std::string> files;
    uint64_t since = 0;
    bool follow = false;
    bool dry_run = false;
    std::string timeout;
    PreemptOptions preempt;
    LoadOptions load;
    WaitOptions wait;
    std::function<Status(const Context&)> run;
};

const std::map<std::string, std::string> kKinds = {
    {"instance", "instances"},   {"instances", "instances"},   {"device", "devices"},
    {"devices", "devices"},      {"weight", "weights"},        {"weights", "weights"},
    {"operation", "operations"}, {"operations", "operations"}, {"decision", "decisions"},
    {"decisions", "decisions"},
};

std::string is_duration(const std::string& text) {
    auto parsed = parse_duration(text);
    return parsed ? std::string() : parsed.error().message;
}

CLI::App* add(CLI::App& app, const std::string& name, const std::string& does,
              const std::string& examples) {
    CLI::App* command = app.add_subcommand(name, does);
    command->fallthrough();
    command->footer("Examples:\n" + examples);
    return command;
}

void add_wait(CLI::App* command, Words& words) {
    CLI::Option* wait = command->add_flag("--wait", words.wait.wait, "Wait until it has ended");
    command->add_option("--timeout", words.timeout, "Longest wait, as 30s or 5m (default: none)")
        ->check(is_duration)
        ->needs(wait);
}

void add_looks(CLI::App& app, Words& words) {
    auto* status = add(app, "status", "The node at a glance: devices, weights, instances",
                       "  berth status\n  berth status -o json");
    status->callback([&words] { words.run = show_status; });

    auto* get_command = add(app, "get", "List objects, or show one",
                            "  berth get instances\n  berth get weights -o yaml\n"
                            "  berth get operations op-1234 -o json");
    get_command
        ->add_option("KIND", words.kind, "instances, devices, weights, operations, decisions")
        ->required()
        ->transform(CLI::Transformer(kKinds))
        ->check(CLI::IsMember({"instances", "devices", "weights", "operations", "decisions"}));
    get_command->add_option("NAME", words.name, "One object's name or id");
    get_command->callback([&words] {
        words.run = [&words](const Context& context) {
            return get(context, words.kind, words.name);
        };
    });

    auto* describe_command =
        add(app, "describe", "Everything known of one object, with the times of its phases",
            "  berth describe instance nightly\n  berth describe device host-0\n"
            "  berth describe weights smollm2");
    describe_command->add_option("KIND", words.kind, "instance, device, weights or operation")
        ->required()
        ->transform(CLI::Transformer(kKinds))
        ->check(CLI::IsMember({"instances", "devices", "weights", "operations"}));
    describe_command->add_option("NAME", words.name, "Its name or id")->required();
    describe_command->callback([&words] {
        words.run = [&words](const Context& context) {
            return describe(context, words.kind, words.name);
        };
    });

    auto* events = add(app, "events", "What happened on the node",
                       "  berth events --since 120\n  berth events --follow -o json");
    events->add_option("--since", words.since, "Only events after this revision");
    events->add_flag("--follow,-f", words.follow, "Go on as they come");
    events->callback([&words] {
        words.run = [&words](const Context& context) {
            return show_events(context, words.since, words.follow);
        };
    });

    auto* doctor = add(app, "doctor", "Check that the node is sound, and say what to do if not",
                       "  berth doctor\n  berth doctor -o json");
    doctor->callback([&words] { words.run = run_doctor; });
}

void add_preemption(CLI::App& app, Words& words) {
    auto* command = add(app, "preempt", "Take the device away from an instance",
                        "  berth preempt nightly --mode Offload --wait\n"
                        "  berth preempt nightly --mode Evict --reason maintenance\n"
                        "  berth preempt nightly --dry-run");
    command->add_option("NAME", words.preempt.name, "The instance")->required();
    command
        ->add_option("--mode", words.preempt.mode,
                     "Pause (keeps its memory), Offload (keeps its process) or Evict")
        ->transform(CLI::IsMember({"Pause", "Offload", "Evict"}, CLI::ignore_case));
    command
        ->add_option("--grace-period", words.preempt.grace_period,
                     "How long requests under way may go on, as 200ms")
        ->check(is_duration);
    command->add_option("--reason", words.preempt.reason, "Kept with the operation");
    command->add_flag("--dry-run", words.preempt.dry_run, "Only say what would happen");
    add_wait(command, words);
    command->callback([&words] {
        words.run = [&words](const Context& context) {
            words.preempt.wait = words.wait;
            return preempt(context, words.preempt);
        };
    });

    auto* resume_command =
        add(app, "resume", "Let a preempted instance go on", "  berth resume nightly --wait");
    resume_command->add_option("NAME", words.name, "The instance")->required();
    resume_command->add_option("--reason", words.preempt.reason, "Kept with the operation");
    add_wait(resume_command, words);
    resume_command->callback([&words] {
        words.run = [&words](const Context& context) {
            return resume(context, words.name, words.preempt.reason, words.wait);
        };
    });
}

void add_weights(CLI::App& app, Words& words) {
    auto* load_command =
        add(app, "load", "Make a model's weights resident",
            "  berth load smollm2 --wait\n  berth load /models/qwen3-8b --device host-0");
    load_command->add_option("MODEL", words.load.model, "A Model's name, or a checkpoint's folder")
        ->required();
    load_command->add_option("--device", words.load.device, "Where to (default: where it fits)");
    add_wait(load_command, words);
    load_command->callback([&words] {
        words.run = [&words](const Context& context) {
            words.load.wait = words.wait;
            return load(context, words.load);
        };
    });

    struct Verb {
        const char* name;
        const char* does;
    };
    for (const Verb& verb : {Verb{"pin", "Keep a weight set resident though nobody uses it"},
                             Verb{"unpin", "Let a weight set go when room is needed"},
                             Verb{"evict", "Drop a weight set that nobody uses"}}) {
        std::string name = verb.name;
        auto* command = add(app, name, verb.does, fmt::format("  berth {} smollm2", name));
        command
            ->add_option("WEIGHTS", words.name,
                         "An id, the beginning of one, or a model's name (see berth get weights)")
            ->required();
        if (name == "evict")
            command->add_flag("--dry-run", words.dry_run, "Only say what would happen");
        command->callback([&words, name] {
            words.run = [&words, name](const Context& context) {
                return change_weights(context, name, words.name, words.dry_run);
            };
        });
    }

    auto* verify = add(app, "verify", "Compute a resident weight set's checksums anew",
                       "  berth verify smollm2");
    verify->add_option("WEIGHTS", words.name, "An id, the beginning of one, or a model's name")
        ->required();
    verify->callback([&words] {
        words.run = [&words](const Context& context) {
            return verify_weights(context, words.name);
        };
    });
}

void add_policies(CLI::App& app, Words& words) {
    auto* apply_command =
        add(app, "apply", "Give the node policies, models and instances",
            "  berth apply -f policies/\n  berth apply -f model.yaml -f nightly.yaml\n"
            "  sed s/old/new/ p.yaml | berth apply -f - --dry-run");
    apply_command
        ->add_option("-f,--file", words.files,
                     "YAML files or folders in this order; '-' reads stdin")
        ->required();
    apply_command->add_flag("--dry-run", words.dry_run, "Only print what would be in force");
    apply_command->callback([&words] {
        words.run = [&words](const Context& context) {
            return apply(context, words.files, words.dry_run);
        };
    });

    auto* validate_command =
        add(app, "validate", "Check YAML files here, without a daemon, and print every default",
            "  berth validate node.yaml policies/");
    validate_command->add_option("FILE", words.files, "Files or folders, taken together")
        ->required();
    validate_command->callback([&words] {
        words.run = [&words](const Context& context) {
            return validate(context.output, words.files);
        };
    });
}

int report(const Error& error) {
    std::string reason = error.reason.empty() ? std::string(to_string(error.code)) : error.reason;
    std::fprintf(stderr, "berth: %s: %s\n", reason.c_str(), error.message.c_str());
    return error.reason == kUnreachable ? kNotReachable : kFailed;
}

} // namespace

int run(int argc, char** argv) {
    Words words;
    CLI::App app("Looks at and steers a Berth node: one set of weights, many engines.", "berth");
    app.footer("Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon reachable.\n"
               "'berth COMMAND --help' has examples.");
    app.set_version_flag("--version", "berth " BERTH_VERSION);
    app.require_subcommand(1);
    app.add_option("--admin", words.admin, "The daemon: a socket's path, or http://host:port")
        ->envname("BERTH_ADMIN")
        ->capture_default_str();
    app.add_option("-o,--output", words.format, "table, json or yaml")
        ->check(CLI::IsMember({"table", "json", "yaml"}))
        ->capture_default_str();
    add_looks(app, words);
    add_preemption(app, words);
    add_weights(app, words);
    add_policies(app, words);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : kUsage;
    }
    if (!words.timeout.empty())
        words.wait.timeout =
            std::chrono::ceil<std::chrono::milliseconds>(*parse_duration(words.timeout));
    Format format = words.format == "json"   ? Format::kJson
                    : words.format == "yaml" ? Format::kYaml
                                             : Format::kTable;
    Context context{AdminClient(words.admin), Output{format, may_colour(stdout)}};
    if (auto done = words.run(context); !done)
        return report(done.error());
    return 0;
}

} // namespace berth::cli

int main(int argc, char** argv) {
    return berth::cli::run(argc, argv);
}
