// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/arguments.h"

#include "base/log.h"
#include "base/units.h"
#include "scheduler/cli/simulate.h"
#include "scheduler/cli/words.h"

#include <fmt/format.h>

#include <cstdlib>

namespace berth::cli {

Result<Session> Words::session() const {
    const char* given = std::getenv("BERTH_ADMIN_TOKEN");
    std::string token = given != nullptr ? given : "";
    if (!token_file.empty()) {
        BERTH_ASSIGN(token, token_in(token_file));
    }
    return Session{
        AdminClient(endpoint_of(admin.empty() ? default_admin() : admin), token, ca_file),
        chosen_format()};
}

void set_run(CLI::App& command, const WordsPtr& words, std::function<Status(const Session&)> run,
             std::function<void()> check) {
    Words* kept = words.get();
    command.callback([kept, run = std::move(run), check = std::move(check)] {
        if (check)
            check();
        kept->run = [kept, run]() -> Status {
            BERTH_ASSIGN(Session session, kept->session());
            return run(session);
        };
    });
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const WordsPtr& words, std::function<Status(const Session&)> run) {
    CLI::App* command = app.add_subcommand(name, description);
    command->fallthrough(); // -o and --admin may follow the command
    set_run(*command, words, std::move(run));
    return command;
}

std::string check_duration(const std::string& text) {
    auto duration = parse_duration(text);
    return duration ? "" : duration.error().message;
}

std::string check_bytes(const std::string& text) {
    auto bytes = parse_bytes(text);
    return bytes ? "" : bytes.error().message;
}

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
    "  berth diff policy.yaml                        what applying it would change\n"
    "  berth apply -f policy.yaml                    change the policy of a running node\n"
    "  berth rollout chat -f chat-2.yaml --wait      replace it while it serves\n"
    "  berth rollout undo chat                       back to the document before\n"
    "  berth delete instance nightly --wait          end what was applied, and forget it\n"
    "  berth plan --class online --memory 8Gi        what would give way\n"
    "  berth explain nightly                         why it waits, or why it is where it is\n"
    "  berth drain device/host-0 --wait              empty a device before its maintenance\n"
    "  berth top                                     all of it, live\n"
    "  berth events --follow\n"
    "  berth bench attach --model qwen3-8b --json\n"
    "\nExit status: 0 done, 1 refused or failed, 2 wrong usage, 3 berthd does not answer.";

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
    CLI::App* why = add_command(
        app, "explain", "Why an instance runs where it does, or why it waits; what was weighed",
        words, [w](const Session& s) { return explain(s, w->name); });
    why->add_option("name", w->name, "An instance, or a decision's id (d-...)")->required();
    CLI::App* live = add_command(app, "top", "The node, live: devices, instances, what happens",
                                 words, [w](const Session& s) { return top(s, w->top); });
    live->add_flag("--once", w->top.once, "One frame, as text");
    add_command(app, "doctor", "Check the node, and say what to do about what is wrong", words,
                doctor);
}

void add_changes(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    auto common = [w](CLI::App* command, const char* what) {
        command->add_option("name", w->change.name, what)->required();
        command->add_option("--request-id", w->change.request_id,
                            "A repetition with the same id does nothing again");
        command->add_flag("--wait", w->change.wait, "Until it is done, then show its phases");
        command->add_flag("--dry-run", w->change.dry_run, "Say what would be done");
    };
    CLI::App* stop = add_command(app, "preempt", "Make an instance give way", words,
                                 [w](const Session& s) { return preempt(s, w->change); });
    common(stop, "The instance");
    stop->add_option("--mode", w->change.mode,
                     "Pause, Shrink, Offload or Evict; the policy's first if none")
        ->check(CLI::IsMember({"Pause", "Shrink", "Offload", "Evict"}));
    stop->add_option("--grace-period", w->change.grace, "How long it may finish: 200ms, 5s")
        ->check(check_duration);
    stop->add_option("--grant", w->change.grant,
                     "Shrink: down to this (512Mi), no less than its request; its request if none")
        ->check(check_bytes);
    stop->add_option("--reason", w->change.reason, "Why, for the records");
    CLI::App* again = add_command(app, "resume", "Let a preempted instance go on", words,
                                  [w](const Session& s) { return resume(s, w->change); });
    common(again, "The instance");
    again->add_option("--reason", w->change.reason, "Why, for the records");
    add_services(app, words);
    add_rollout(app, words);
    CLI::App* in = add_command(app, "load", "Load a model's weights, once for all", words,
                               [w](const Session& s) { return load(s, w->change); });
    common(in, "A Model of the policy, or a checkpoint's folder (with a '/')");
    in->add_option("--device", w->change.device,
                   "The device; if none where it is resident, else where most is free. Of a Model "
                   "of several ranks one for each, in their order: A,B");
    in->add_option(
          "--dtype", w->change.dtype,
          "Of a folder: auto (as stored), bfloat16, float32 or float16; a Model says its own")
        ->check(CLI::IsMember({"auto", "bfloat16", "float32", "float16"}));
    in->add_option("--quantization", w->change.quantization,
                   "Of a folder: none, or fp8-block: FP8 by blocks of 128 x 128 on the way in")
        ->check(CLI::IsMember({"none", "fp8-block"}));
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
    PolicyOptions& policy = w->policy;
    CLI::App* put = add_command(app, "apply", "Add to the node's policy, or change it", words,
                                [w](const Session& s) { return apply(s, w->policy); });
    auto* files = put->add_option("-f,--file,files", policy.files, "YAML files; '-' is stdin");
    put->add_flag("--dry-run", policy.dry_run, "Print the policy that would hold");
    put->add_option("--if-match", policy.if_match,
                    "Only if the policy is still the one with this tag (see diff)");
    auto* reset = put->add_flag("--reset", policy.reset,
                                "Forget what was applied: back to the node's own files");
    reset->excludes(files);
    set_run(
        *put, words, [w](const Session& session) { return apply(session, w->policy); },
        [put] {
            if (put->count("--file") == 0 && put->count("--reset") == 0)
                throw CLI::RequiredError("apply: files, or --reset");
        });
    CLI::App* compare =
        add_command(app, "diff", "Show what applying files would change, field by field", words,
                    [w](const Session& s) { return diff(s, w->policy); });
    compare->add_option("-f,--file,files", policy.files, "YAML files; '-' is stdin")->required();
    add_command(app, "policy", "Print the policy that holds, with every default", words,
                show_policy);
    CLI::App* schema =
        app.add_subcommand("schema", "Print the JSON Schema of Berth's YAML, for editors");
    schema->fallthrough();
    schema->add_option("kind", policy.kind,
                       "Node, ColocationPolicy, Model or Instance; all if none");
    schema->callback([w] { w->run = [w] { return print_schema(w->policy.kind); }; });
    CLI::App* check =
        app.add_subcommand("validate", "Check YAML files and print what they mean in full");
    check->fallthrough();
    check->add_option("-f,--file,files", w->files, "Files, and folders of them")->required();
    check->callback([w] { w->run = [w] { return validate(w->chosen_format(), w->files); }; });
    CLI::App* token = app.add_subcommand(
        "token", "Make a bearer token for the admin interface over TCP, and its line for the node");
    token->fallthrough();
    token->add_option("name", w->name, "Whose it is, for the audit")->required();
    token->add_option("--role", w->role, "viewer, operator or admin")
        ->required()
        ->check(CLI::IsMember({"viewer", "operator", "admin"}));
    token->callback(
        [w] { w->run = [w] { return make_token(w->chosen_format(), w->name, w->role); }; });
}

void add_plan(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    CLI::App* plan = app.add_subcommand(
        "plan", "What would happen, without doing it: if instances came, or bytes were needed");
    plan->fallthrough();
    auto* files =
        plan->add_option("-f,--file", w->what_if.files, "YAML of instances; '-' is stdin");
    auto* memory = plan->add_option("--memory", w->what_if.memory, "Bytes that are needed: 8Gi")
                       ->check(check_bytes)
                       ->excludes(files);
    plan->add_option("--class", w->what_if.class_name, "Who needs them: a priority class")
        ->needs(memory);
    plan->add_option("--device", w->what_if.device, "Where; any device if none")->needs(memory);
    plan->require_subcommand(0, 1);
    plan->callback([w, plan] {
        if (!plan->get_subcommands().empty())
            return; // plan weights
        if (plan->count("--file") == 0 && plan->count("--memory") == 0)
            throw CLI::RequiredError("plan: -f FILE, --memory BYTES, or weights");
        w->run = [w]() -> Status {
            BERTH_ASSIGN(Session session, w->session());
            return cli::plan(session, w->what_if);
        };
    });
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

} // namespace

Invocation read_arguments(int argc, char** argv) {
    auto words = std::make_shared<Words>();
    CLI::App app("Berth shares model weights between the engines of one node, and lets batch give\n"
                 "way to online work. This program looks at a node and changes it.",
                 "berth");
    app.footer("Also -o table|json|yaml, --admin and others, before or after it: see berth --help");
    app.require_subcommand(1);
    app.set_version_flag("--version", std::string("berth ") + BERTH_VERSION);
    app.add_option(
           "--admin", words->admin,
           "berthd's admin socket: a path, unix:/path, or http(s)://host:port with a token; "
           "default " +
               default_admin())
        ->envname("BERTH_ADMIN");
    app.add_option("--token-file", words->token_file,
                   "A file with the token for TCP, and nothing else; or the token itself in "
                   "BERTH_ADMIN_TOKEN")
        ->envname("BERTH_ADMIN_TOKEN_FILE");
    app.add_option("--ca", words->ca_file,
                   "Whom to trust with https: certificates in PEM; default: whom the system trusts")
        ->envname("BERTH_ADMIN_CA");
    app.add_option("-o,--output", words->format, "table, json or yaml")
        ->check(CLI::IsMember({"table", "json", "yaml"}));
    add_looks(app, words);
    add_changes(app, words);
    add_policy(app, words);
    add_plan(app, words);
    add_simulate(app, words->format, words->run);
    add_bench(app, words);
    app.footer(kExamples); // of the program alone: the commands have taken theirs
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
