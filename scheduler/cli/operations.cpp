// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/tables.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <poll.h>
#include <unistd.h>

namespace berth::cli {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long a waiting command bears a daemon that is away.
constexpr std::chrono::seconds kAwayMax{30};

// Begins, waits if that is wanted, prints, and says how it ended.
Status run_operation(const Session& session, const std::string& target, const json::object& body,
                     bool wait) {
    BERTH_ASSIGN(json::object operation, begin(session.client, target, body));
    if (wait) {
        BERTH_ASSIGN(operation, wait_for(session.client, text_at(operation, "id")));
    }
    print_operation(session, operation);
    return outcome_of(operation);
}

json::object body_of(const ChangeOptions& options) {
    json::object body;
    auto add = [&body](const char* field, const std::string& text) {
        if (!text.empty())
            body[field] = text;
    };
    add("mode", options.mode);
    add("gracePeriod", options.grace);
    add("grantBytes", options.grant);
    add("reason", options.reason);
    add("requestId", options.request_id);
    add("timeout", options.timeout);
    if (options.dry_run)
        body["dryRun"] = true;
    if (options.drop)
        body["drop"] = true;
    return body;
}

} // namespace

void print_operation(const Session& session, const json::object& operation) {
    if (session.format == Format::kJson)
        return print(pretty_json(operation));
    if (session.format == Format::kYaml)
        return print(yaml_text(operation));
    std::string object = text_at(operation, "object");
    if (object.empty())
        object = "instance/" + text_at(operation, "instance");
    std::string id = text_at(operation, "id");
    if (text_at(operation, "state") == "Running")
        return print(fmt::format("{}: {} under way, operation {} (berth describe operation {})\n",
                                 object, text_at(operation, "kind"), id, id));
    // One that failed at once is told as an error, by main.
    const auto* phases = operation.if_contains("phases");
    if (text_at(operation, "state") == "Failed" &&
        (phases == nullptr || phases_table(*phases).empty()))
        return;
    std::string text =
        fmt::format("{}: {}{} {}", object, flag_at(operation, "dryRun") ? "(dry run) " : "",
                    text_at(operation, "kind"), text_at(operation, "state"));
    if (const auto* ms = operation.if_contains("ms"); ms != nullptr && ms->is_number())
        text += " in " + milliseconds_text(ms->to_number<double>());
    if (text_at(operation, "kind") == "Preempt")
        text += " by " + text_at(operation, "reached");
    if (uint64_t freed = number_at(operation, "bytesFreed");
        freed > 0 || text_at(operation, "kind") == "Preempt")
        text += fmt::format(", {} freed", format_bytes(freed));
    if (!text_at(operation, "message").empty())
        text += ": " + text_at(operation, "message");
    print(text + "\n");
    if (phases != nullptr)
        if (Table table = phases_table(*phases); !table.empty())
            print(table.text(false));
}

void pause_between_looks(std::chrono::microseconds duration) {
    const timespec span{.tv_sec = duration.count() / 1'000'000,
                        .tv_nsec = duration.count() % 1'000'000 * 1000};
    (void)::ppoll(nullptr, 0, &span, nullptr);
}

Result<json::object> begin(const AdminClient& client, const std::string& target,
                           const json::object& body) {
    BERTH_ASSIGN(json::value reply, client.post(target, body));
    if (!reply.is_object() || text_at(reply.get_object(), "id").empty())
        return fail(ErrorCode::kCorrupt, "berthd's reply is no operation: is it of the same "
                                         "version as this program?");
    return std::move(reply.get_object());
}

Result<json::object> wait_for(const AdminClient& client, const std::string& id,
                              milliseconds look_every, const std::function<void()>& on_look) {
    std::string target =
        fmt::format("/v1/operations/{}?wait={}ms", http::percent_encode(id), look_every.count());
    std::optional<Clock::time_point> away_since;
    for (;;) {
        auto reply = client.get(target, look_every + std::chrono::seconds(30));
        if (!reply) {
            if (reply.error().reason != kNotReachable)
                return fail(reply.error());
            if (!away_since)
                away_since = Clock::now();
            if (Clock::now() - *away_since > kAwayMax)
                return fail(reply.error());
            pause_between_looks(milliseconds(100));
            continue;
        }
        away_since.reset();
        if (!reply->is_object())
            return fail(ErrorCode::kCorrupt, "berthd's reply is no operation");
        if (text_at(reply->get_object(), "state") != "Running")
            return std::move(reply->get_object());
        if (on_look)
            on_look();
    }
}

Status outcome_of(const json::object& operation) {
    if (text_at(operation, "state") != "Failed")
        return {};
    if (const auto* error = operation.if_contains("error"); error != nullptr && error->is_object())
        return fail(json::to_error(*error));
    return fail(ErrorCode::kFailedPrecondition, text_at(operation, "message"), "OperationFailed");
}

namespace {

Status ask_of_instance(const Session& session, std::string_view verb, const ChangeOptions& options,
                       bool waits) {
    return run_operation(
        session, fmt::format("/v1/instances/{}:{}", http::percent_encode(options.name), verb),
        body_of(options), waits);
}

} // namespace

Status preempt(const Session& session, const ChangeOptions& options) {
    return ask_of_instance(session, "preempt", options, options.wait || options.dry_run);
}

Status resume(const Session& session, const ChangeOptions& options) {
    return ask_of_instance(session, "resume", options, options.wait || options.dry_run);
}

Status promote(const Session& session, const ChangeOptions& options) {
    return ask_of_instance(session, "promote", options, options.wait || options.dry_run);
}

Status change_hold(const Session& session, const std::string& verb, const ChangeOptions& options) {
    return ask_of_instance(session, verb, options, options.wait);
}

Status drain(const Session& session, const ChangeOptions& options) {
    constexpr std::string_view kDevice = "device/";
    const bool named = options.name.starts_with(kDevice);
    if (options.name.empty() == options.device.empty())
        return fail(ErrorCode::kInvalidArgument,
                    "drain what? An instance's name, or a device as device/ID or --device ID");
    const std::string device = named ? options.name.substr(kDevice.size()) : options.device;
    const std::string path = device.empty() ? "instances/" + http::percent_encode(options.name)
                                            : "devices/" + http::percent_encode(device);
    return run_operation(session, "/v1/" + path + ":drain", body_of(options),
                         options.wait || options.dry_run);
}

Status change_cordon(const Session& session, const std::string& verb,
                     const ChangeOptions& options) {
    constexpr std::string_view kDevice = "device/";
    const std::string device =
        options.name.starts_with(kDevice) ? options.name.substr(kDevice.size()) : options.name;
    return run_operation(session,
                         fmt::format("/v1/devices/{}:{}", http::percent_encode(device), verb),
                         body_of(options), options.wait);
}

Status change_weights(const Session& session, const std::string& verb,
                      const ChangeOptions& options) {
    BERTH_ASSIGN(std::string id, weight_set_id(session.client, options.name));
    return run_operation(session, fmt::format("/v1/weights/{}:{}", http::percent_encode(id), verb),
                         body_of(options), true);
}

} // namespace berth::cli
