// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/command.h"

#include "base/hash.h"
#include "base/http/http.h"
#include "base/units.h"
#include "scheduler/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <unistd.h>

namespace berth::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{30'000};         // one long poll
constexpr std::chrono::milliseconds kProgressLook{200};    // with a line to draw
constexpr std::chrono::milliseconds kAnswerMargin{30'000}; // for the reply after the poll's end
constexpr std::chrono::minutes kVerifyMax{60};
constexpr size_t kIdBeginMin = 4; // shorter beginnings of ids are not looked up

bool is_running(const json::value& operation) {
    return text(operation, "state") == "Running";
}

// An operation of any state as a Result: what failed is its error.
Result<json::value> judged(json::value operation) {
    if (text(operation, "state") != "Failed")
        return operation;
    const json::value* error = field(operation, "error");
    if (error != nullptr)
        return fail(json::to_error(*error));
    return fail(ErrorCode::kInternal, fmt::format("operation {} failed: {}", text(operation, "id"),
                                                  text(operation, "message")));
}

json::object body_with_request_id() {
    json::object body;
    body["requestId"] = "cli-" + random_hex(8);
    return body;
}

// Changes that are quick are always awaited: their outcome is the reply.
Status post_and_print(const Context& context, const std::string& target, const json::object& body,
                      const WaitOptions& wait) {
    BERTH_ASSIGN(json::value begun, context.client.post(target, body));
    BERTH_ASSIGN(json::value operation, wait_operation(context.client, std::move(begun), wait));
    print_operation(context.output, operation);
    return {};
}

} // namespace

Result<json::value> wait_operation(const AdminClient& client, json::value operation,
                                   const WaitOptions& wait, const std::function<void()>& on_poll) {
    auto until = Clock::now() + wait.timeout;
    while (wait.wait && is_running(operation)) {
        std::chrono::milliseconds look = on_poll ? kProgressLook : kLook;
        if (wait.timeout.count() > 0) {
            auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
            if (left.count() <= 0)
                return fail(ErrorCode::kDeadlineExceeded,
                            fmt::format("operation {} still runs after {}; follow it with 'berth "
                                        "describe operation {}'",
                                        text(operation, "id"), format_duration_exact(wait.timeout),
                                        text(operation, "id")));
            look = std::min(look, left);
        }
        std::string target = fmt::format("/v1/operations/{}?wait={}ms",
                                         http::percent_encode(text(operation, "id")), look.count());
        BERTH_ASSIGN(operation, client.get(target, look + kAnswerMargin));
        if (on_poll)
            on_poll();
    }
    return judged(std::move(operation));
}

void print_operation(const Output& output, const json::value& operation) {
    if (!output.is_table()) {
        output.print(operation);
        return;
    }
    std::string object = text(operation, "object");
    if (object.empty())
        object = text(operation, "instance");
    std::string line =
        fmt::format("{}: {} {}", object, text(operation, "kind"),
                    flag(operation, "dryRun") ? "would do this" : text(operation, "state"));
    std::string mode =
        text(operation, "reached").empty() ? text(operation, "mode") : text(operation, "reached");
    if (text(operation, "kind") == "Preempt" && !mode.empty())
        line += fmt::format(" ({})", mode);
    if (!duration(operation, "ms").empty())
        line += " in " + duration(operation, "ms");
    if (number(operation, "bytesFreed") > 0)
        line += ", " + bytes(operation, "bytesFreed") + " freed";
    if (!text(operation, "message").empty())
        line += ": " + text(operation, "message");
    if (is_running(operation))
        line +=
            fmt::format("; follow it with 'berth describe operation {}'", text(operation, "id"));
    std::fputs((line + "\n").c_str(), stdout);
    if (const json::value* phases = field(operation, "phases"); phases && phases->is_array())
        for (const json::value& phase : phases->get_array())
            std::fputs(
                fmt::format("  {:<16} {}\n", text(phase, "name"), duration(phase, "ms")).c_str(),
                stdout);
}

Status preempt(const Context& context, const PreemptOptions& options) {
    json::object body = body_with_request_id();
    if (!options.mode.empty())
        body["mode"] = options.mode;
    if (!options.grace_period.empty())
        body["gracePeriod"] = options.grace_period;
    if (!options.reason.empty())
        body["reason"] = options.reason;
    WaitOptions wait = options.wait;
    if (options.dry_run) {
        body["dryRun"] = true;
        wait.wait = true;
    }
    return post_and_print(
        context, "/v1/instances/" + http::percent_encode(options.name) + ":preempt", body, wait);
}

Status resume(const Context& context, const std::string& name, const std::string& reason,
              const WaitOptions& wait) {
    json::object body = body_with_request_id();
    if (!reason.empty())
        body["reason"] = reason;
    return post_and_print(context, "/v1/instances/" + http::percent_encode(name) + ":resume", body,
                          wait);
}

Status load(const Context& context, const LoadOptions& options) {
    json::object body = body_with_request_id();
    bool is_path = options.model.find('/') != std::string::npos;
    std::string wanted = options.model;
    if (is_path) {
        std::error_code ignored;
        wanted = std::filesystem::absolute(options.model, ignored).lexically_normal().string();
        while (wanted.size() > 1 && wanted.ends_with('/'))
            wanted.pop_back();
    }
    body[is_path ? "path" : "model"] = wanted;
    if (!options.device.empty())
        body["device"] = options.device;
    BERTH_ASSIGN(json::value operation, context.client.post("/v1/weights:load", body));
    ProgressLine line(stderr, ::isatty(STDERR_FILENO) == 1, "loading " + options.model);
    auto look = [&] {
        auto listed = context.client.get("/v1/weights");
        if (!listed)
            return; // the next look at the operation tells
        for (const json::value& one : items(*listed))
            if (const json::value* progress = field(one, "progress");
                progress != nullptr && text(one, is_path ? "path" : "model") == wanted)
                line.update(text(*progress, "phase"),
                            static_cast<uint64_t>(number(*progress, "bytesDone")),
                            static_cast<uint64_t>(number(*progress, "bytesTotal")), Clock::now());
    };
    auto ended = wait_operation(context.client, std::move(operation), options.wait, look);
    line.clear();
    if (!ended)
        return fail(std::move(ended).error());
    print_operation(context.output, *ended);
    return {};
}

Result<json::value> find_weights(const AdminClient& client, const std::string& given) {
    BERTH_ASSIGN(json::value listed, client.get("/v1/weights"));
    std::vector<const json::value*> fitting;
    std::string known;
    for (const json::value& one : items(listed)) {
        std::string id = text(one, "id");
        if (id == given)
            return one;
        if (text(one, "model") == given || (given.size() >= kIdBeginMin && id.starts_with(given)))
            fitting.push_back(&one);
        known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", id, text(one, "model"));
    }
    if (fitting.size() == 1)
        return *fitting.front();
    if (fitting.size() > 1)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("'{}' means {} weight sets: give the id of one; there are {}",
                                given, fitting.size(), known),
                    "Ambiguous");
    return fail(ErrorCode::kNotFound, fmt::format("no weight set is '{}'; there {}", given,
                                                  known.empty() ? "are none" : "are " + known));
}

Status change_weights(const Context& context, const std::string& verb, const std::string& set,
                      bool dry_run) {
    BERTH_ASSIGN(json::value found, find_weights(context.client, set));
    json::object body = body_with_request_id();
    if (dry_run)
        body["dryRun"] = true;
    WaitOptions wait;
    wait.wait = true;
    return post_and_print(
        context, "/v1/weights/" + http::percent_encode(text(found, "id")) + ":" + verb, body, wait);
}

Status verify_weights(const Context& context, const std::string& set) {
    BERTH_ASSIGN(json::value found, find_weights(context.client, set));
    std::string id = text(found, "id");
    BERTH_ASSIGN(
        json::value verdict,
        context.client.post("/v1/weights/" + http::percent_encode(id) + ":verify", {}, kVerifyMax));
    if (!context.output.is_table())
        context.output.print(verdict);
    else if (flag(verdict, "ok"))
        std::fputs(
            fmt::format("{}: {} tensors, {}, are as they were loaded (looked through in {})\n", id,
                        text(verdict, "tensors"), bytes(verdict, "bytes"), duration(verdict, "ms"))
                .c_str(),
            stdout);
    if (flag(verdict, "ok"))
        return {};
    std::string names;
    if (const json::value* listed = field(verdict, "mismatched"); listed && listed->is_array())
        for (const json::value& name : listed->get_array())
            names += (names.empty() ? "" : ", ") +
                     (name.is_string() ? std::string(name.get_string()) : "");
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: {} tensors differ from what was loaded: {}; evict the set and load "
                    "it again",
                    id, text(verdict, "mismatchedCount"), names),
        "ChecksumMismatch");
}

} // namespace berth::cli
