// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/words.h"

namespace berth::cli {

namespace {

void add_common(CLI::App* command, RolloutOptions& options) {
    command->add_option("--reason", options.reason, "Why, for the records");
    command->add_option("--request-id", options.request_id,
                        "A repetition with the same id does nothing again");
    command->add_flag("--wait", options.wait, "Until it is over, with its phases");
    command->add_option("--timeout", options.timeout, "Wait no longer than that: 90s, 10m")
        ->check(check_duration);
    command->add_flag("--dry-run", options.dry_run, "Say what would be done");
}

void add_status(CLI::App& all, const WordsPtr& words) {
    Words* w = words.get();
    CLI::App* status = add_command(
        all, "status", "Follow the last rollout of an instance until it is over, or paused", words,
        [w](const Session& s) { return rollout_status(s, w->rollout); });
    status->add_option("name", w->rollout.name, "The instance")->required();
    status->add_flag("-w,--watch,!--no-watch", w->rollout.watch, "The default; else show it once");
    status->add_option("--timeout", w->rollout.timeout, "Follow no longer than that: 90s, 10m")
        ->check(check_duration);
}

} // namespace

void add_rollout(CLI::App& app, const WordsPtr& words) {
    Words* w = words.get();
    CLI::App* all =
        app.add_subcommand("rollout", "Change an instance's document while it goes on serving");
    all->fallthrough();
    auto* name = all->add_option("name", w->rollout.name, "The instance");
    auto* file = all->add_option("-f,--file", w->rollout.file,
                                 "Its new document, one of kind Instance; '-' is stdin");
    all->add_flag("--pause", w->rollout.pause,
                  "Do not hand over before `berth rollout resume NAME`");
    auto* place = all->add_flag("--in-place", w->rollout.in_place,
                                "Stop it, then start it: nobody serves meanwhile");
    place->excludes("--pause");
    all->add_option("--max-unavailable", w->rollout.unavailable_max,
                    "1: in place, if there is no room beside it")
        ->check(CLI::Range(0, 1'000));
    add_common(all, w->rollout);
    all->require_subcommand(0, 1);
    all->callback([w, all, name, file] {
        if (!all->get_subcommands().empty())
            return;
        if (name->count() == 0 || file->count() == 0)
            throw CLI::RequiredError("rollout: NAME -f FILE, or status, pause, resume, undo");
        w->run = [w]() -> Status {
            BERTH_ASSIGN(Session session, w->session());
            return rollout(session, w->rollout);
        };
    });
    add_status(*all, words);
    for (const char* verb : {"pause", "resume", "undo"}) {
        CLI::App* command = add_command(
            *all, verb,
            verb[0] == 'p'   ? "Let it not hand over for now"
            : verb[0] == 'r' ? "Let it go on"
                             : "Back to the document before, under way or complete",
            words, [w, verb](const Session& s) { return change_rollout(s, verb, w->rollout); });
        command->add_option("name", w->rollout.name, "The instance")->required();
        if (verb[0] == 'u')
            command->add_flag("--in-place", w->rollout.in_place,
                              "Of a complete one: stop it, then start it");
        add_common(command, w->rollout);
    }
}

} // namespace berth::cli
