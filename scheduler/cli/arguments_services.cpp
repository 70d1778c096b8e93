// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/words.h"

namespace berth::cli {

namespace {

void add_delete(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    CLI::App* away = add_command(
        app, "delete", "End an instance and forget it; one that a policy file defines is refused",
        words, [w](const Session& s) { return delete_instance(s, w->change); });
    away->add_option("kind", w->kind, "instance")
        ->required()
        ->check(CLI::IsMember({"instance", "instances"}));
    away->add_option("name", w->change.name, "Its name")->required();
    away->add_option("--if-match", w->change.if_match,
                     "Only if its document still has this tag (etag of berth get instance NAME)");
    away->add_option("--request-id", w->change.request_id,
                     "A repetition with the same id does nothing again");
    away->add_flag("--wait", w->change.wait, "Until it is gone");
    away->add_flag("--dry-run", w->change.dry_run, "Say what would be done");
}

} // namespace

// Hold, drain, promote, cordon: what takes out of service and back.
void add_services(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    auto common = [w](CLI::App* command) {
        command->add_option("--reason", w->change.reason, "Why, for the records");
        command->add_option("--request-id", w->change.request_id,
                            "A repetition with the same id does nothing again");
        command->add_flag("--wait", w->change.wait, "Until it is done, then show its phases");
        command->add_flag("--dry-run", w->change.dry_run, "Say what would be done");
    };
    for (const char* verb : {"hold", "release"}) {
        CLI::App* hold = add_command(
            app, verb,
            verb[0] == 'h' ? "Neither start nor resume an instance until it is released"
                           : "Let an instance on hold be started and resumed again",
            words, [w, verb](const Session& s) { return change_hold(s, verb, w->change); });
        hold->add_option("name", w->change.name, "The instance")->required();
        common(hold);
    }
    CLI::App* promoted = add_command(
        app, "promote", "A standby takes over; the one before starts again and stands by", words,
        [w](const Session& s) { return promote(s, w->change); });
    promoted->add_option("name", w->change.name, "The standby")->required();
    common(promoted);
    CLI::App* leave = add_command(
        app, "drain", "Let an instance finish and end; of a device: all of them, and they move on",
        words, {});
    auto* name = leave->add_option("name", w->change.name, "An instance, or device/ID");
    leave->add_option("--device", w->change.device, "A device")->excludes(name);
    leave
        ->add_option("--timeout", w->change.timeout,
                     "How long it may finish what is under way; 30s if none")
        ->check(check_duration);
    common(leave);
    set_run(
        *leave, words, [w](const Session& session) { return drain(session, w->change); },
        [leave] {
            if (leave->count("name") == 0 && leave->count("--device") == 0)
                throw CLI::RequiredError("drain: an instance, or --device");
        });
    for (const char* verb : {"cordon", "uncordon"}) {
        CLI::App* cordon = add_command(
            app, verb,
            verb[0] == 'c' ? "Place nothing new on a device; what runs there goes on"
                           : "Take a device into service again",
            words, [w, verb](const Session& s) { return change_cordon(s, verb, w->change); });
        cordon->add_option("device", w->change.name, "The device")->required();
        common(cordon);
    }
    add_delete(app, words);
}

} // namespace berth::cli
