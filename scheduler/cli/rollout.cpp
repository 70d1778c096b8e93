// SPDX-License-Identifier: Apache-2.0
// `berth rollout`: begins one, and follows it phase by phase. What a rollout is lies with berthd,
// so following bears a berthd that is away for a while.
#include "base/unique_fd.h"
#include "base/units.h"
#include "policies/yaml.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

namespace berth::cli {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAwayMax{30};
constexpr milliseconds kLookEvery{200};

std::string target_of(const std::string& name, std::string_view what) {
    return fmt::format("/v1/instances/{}{}", http::percent_encode(name), what);
}

std::string line_of(const json::object& rollout) {
    std::string text = fmt::format("rollout {} of {}: {}", number_at(rollout, "number"),
                                   text_at(rollout, "instance"), text_at(rollout, "phase"));
    if (flag_at(rollout, "paused"))
        text += " (paused)";
    for (const char* field : {"reason", "message"})
        if (const std::string words = text_at(rollout, field); !words.empty())
            text += ": " + words;
    return text + "\n";
}

// It goes nowhere by itself any more.
bool stands_still(const json::object& rollout) {
    return !flag_at(rollout, "underWay") ||
           (flag_at(rollout, "paused") && text_at(rollout, "phase") == "Ready");
}

Status outcome(const json::object& rollout) {
    if (text_at(rollout, "phase") != "Failed")
        return {};
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("rollout {} of {} has failed: {}", number_at(rollout, "number"),
                            text_at(rollout, "instance"), text_at(rollout, "message")),
                text_at(rollout, "reason"));
}

Result<json::object> look(const Session& session, const std::string& name) {
    BERTH_ASSIGN(json::value reply, session.client.get(target_of(name, "/rollout")));
    if (!reply.is_object() || text_at(reply.get_object(), "phase").empty())
        return fail(ErrorCode::kCorrupt, "berthd's reply is no rollout: is it of the same version "
                                         "as this program?");
    return std::move(reply.get_object());
}

// Until it stands still; each phase is told once.
Result<json::object> follow(const Session& session, const RolloutOptions& options,
                            const std::function<void(const json::object&)>& tell) {
    std::optional<Clock::time_point> until, away_since;
    if (!options.timeout.empty()) {
        BERTH_ASSIGN(const Nanoseconds timeout, parse_duration(options.timeout));
        until = Clock::now() + timeout;
    }
    std::string told;
    for (;; pause_between_looks(kLookEvery)) {
        auto rollout = look(session, options.name);
        if (rollout) {
            away_since.reset();
            const std::string now =
                fmt::format("{} {} {}", number_at(*rollout, "number"), text_at(*rollout, "phase"),
                            text_at(*rollout, "message"));
            if (stands_still(*rollout))
                return rollout;
            if (std::exchange(told, now) != now)
                tell(*rollout);
        } else if (rollout.error().reason != kNotReachable) {
            return fail(rollout.error());
        } else if (!away_since) {
            away_since = Clock::now();
        } else if (Clock::now() - *away_since > kAwayMax) {
            return fail(rollout.error());
        }
        if (until && Clock::now() >= *until)
            return fail(ErrorCode::kDeadlineExceeded,
                        fmt::format("the rollout of {} is not over after {}; it goes on, and "
                                    "`berth rollout status {}` follows it",
                                    options.name, options.timeout, options.name),
                        "RolloutTimeout");
    }
}

Status show(const Session& session, const json::object& rollout) {
    if (session.format == Format::kJson)
        print(pretty_json(rollout));
    else if (session.format == Format::kYaml)
        print(yaml_text(rollout));
    else
        print(line_of(rollout));
    return outcome(rollout);
}

// What was begun, and, if that is wanted, what comes of it.
Status begun(const Session& session, const RolloutOptions& options, const json::object& operation) {
    if (!options.wait || options.dry_run || text_at(operation, "state") == "Failed") {
        print_operation(session, operation);
        return outcome_of(operation);
    }
    const auto progress = [](const json::object& rollout) { print_error(line_of(rollout)); };
    BERTH_ASSIGN(const json::object last, follow(session, options, progress));
    return show(session, last);
}

} // namespace

Status rollout(const Session& session, const RolloutOptions& options) {
    const bool piped = options.file == "-";
    const std::string path =
        piped ? "/dev/stdin" : std::filesystem::absolute(options.file).string();
    BERTH_ASSIGN(const std::string text, read_file(path, policies::kYamlBytesMax));
    const std::string shown = piped ? (std::filesystem::current_path() / "stdin").string() : path;
    BERTH_ASSIGN(const policies::Documents checked, policies::parse_fragment(text, shown));
    (void)checked; // berthd says what is missing beside it; here only that it can be read
    std::string target = target_of(options.name, ":rollout?file=" + http::percent_encode(shown));
    const auto add = [&target](const char* name, const std::string& value) {
        target += fmt::format("&{}={}", name, http::percent_encode(value));
    };
    if (options.pause)
        add("pause", "true");
    if (options.in_place)
        add("inPlace", "true");
    if (options.unavailable_max > 0)
        add("maxUnavailable", std::to_string(options.unavailable_max));
    if (options.dry_run)
        add("dryRun", "true");
    if (!options.reason.empty())
        add("reason", options.reason);
    if (!options.request_id.empty())
        add("requestId", options.request_id);
    BERTH_ASSIGN(const http::Response raw,
                 session.client.exchange("POST", target, text,
                                         http::Headers{{"Content-Type", "application/yaml"}}));
    BERTH_ASSIGN(const json::value reply, http::json_from(raw));
    if (!reply.is_object() || text_at(reply.get_object(), "id").empty())
        return fail(ErrorCode::kCorrupt, "berthd's reply is no operation: is it of the same "
                                         "version as this program?");
    return begun(session, options, reply.get_object());
}

Status rollout_status(const Session& session, const RolloutOptions& options) {
    if (!options.watch) {
        BERTH_ASSIGN(const json::object now, look(session, options.name));
        return show(session, now);
    }
    const auto tell = [&session](const json::object& rollout) {
        if (session.format == Format::kTable)
            print(line_of(rollout));
    };
    BERTH_ASSIGN(const json::object last, follow(session, options, tell));
    return show(session, last);
}

Status change_rollout(const Session& session, const std::string& verb,
                      const RolloutOptions& options) {
    json::object body;
    if (!options.reason.empty())
        body["reason"] = options.reason;
    if (!options.request_id.empty())
        body["requestId"] = options.request_id;
    if (options.dry_run)
        body["dryRun"] = true;
    if (options.in_place)
        body["inPlace"] = true;
    BERTH_ASSIGN(const json::object operation,
                 begin(session.client, target_of(options.name, ":" + verb + "Rollout"), body));
    return begun(session, options, operation);
}

} // namespace berth::cli
