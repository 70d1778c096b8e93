// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/admin_api.h"

#include "base/hash.h"
#include "base/json.h"
#include "policies/yaml.h"
#include "scheduler/admin/views.h"
#include "scheduler/admin/wait.h"

#include <fmt/format.h>

#include <charconv>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;

namespace {

constexpr size_t kEventsAtOnce = 500;
// An idle watch hears an empty line now and then, so that dead peers are noticed.
constexpr std::chrono::seconds kHeartbeat{15};

Result<int64_t> number_of(const Request& request, const char* name, int64_t fallback) {
    auto found = request.query.find(name);
    if (found == request.query.end())
        return fallback;
    int64_t number = 0;
    const std::string& text = found->second;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 0)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("query parameter '{}': expected a number, found '{}'", name, text));
    return number;
}

std::string lines_of(const std::vector<EventRecord>& records) {
    std::string lines;
    for (const EventRecord& record : records)
        lines += json::serialize(views::event(record)) + "\n";
    return lines;
}

} // namespace

void AdminApi::add_event_routes(http::Router& router) {
    router.add_stream("GET", "/v1/events", [this](Request request, http::StreamPtr stream) {
        return events(std::move(request), std::move(stream));
    });
    get(router, "/v1/decisions", [this](Request request) -> asio::awaitable<Response> {
        return decisions(std::move(request));
    });
    get(router, "/v1/decisions/{id}", [this](Request request) -> asio::awaitable<Response> {
        return decisions(std::move(request));
    });
}

asio::awaitable<Result<std::vector<EventRecord>>> AdminApi::stored_events(int64_t since) {
    using Events = Result<std::vector<EventRecord>>;
    auto read = std::make_shared<std::optional<Events>>();
    auto done = std::make_shared<asio::steady_timer>(parts_.context.io,
                                                     asio::steady_timer::time_point::max());
    asio::io_context& io = parts_.context.io;
    parts_.store.read_events(since, kEventsAtOnce, [read, done, &io](Events events) {
        asio::post(io, [read, done, events = std::move(events)]() mutable {
            read->emplace(std::move(events));
            done->cancel();
        });
    });
    (void)co_await done->async_wait(asio::as_tuple(asio::use_awaitable));
    if (!*read)
        throw boost::system::system_error(asio::error::operation_aborted);
    co_return std::move(**read);
}

asio::awaitable<void> AdminApi::events(Request request, http::StreamPtr stream) {
    EventLog& log = parts_.context.events;
    Status may = allowed(request);
    auto since = number_of(request, "since", 0);
    if (!may || !since) {
        Response refused = http::error_response(!may ? may.error() : since.error());
        (void)co_await stream->respond(std::move(refused));
        co_return;
    }
    int64_t seen = *since;
    // 0 means: all that there is.
    if (seen != 0 && seen + 1 < log.oldest_revision()) {
        Error gone{ErrorCode::kNotFound,
                   fmt::format("events after {} are no longer kept; the oldest is {}", seen,
                               log.oldest_revision()),
                   "TooOld", 0};
        Response refused = http::error_response(gone, 410);
        (void)co_await stream->respond(std::move(refused));
        co_return;
    }
    auto follow_at = request.query.find("follow");
    bool follow = follow_at != request.query.end() && follow_at->second != "false";
    http::Headers headers;
    if (!co_await stream->start(200, "application/x-ndjson", headers))
        co_return;
    while (!request.peer->closed()) {
        std::vector<EventRecord> batch;
        if (log.covers(seen)) {
            batch = log.after(seen, kEventsAtOnce);
        } else {
            auto stored = co_await stored_events(seen);
            if (!stored)
                co_return;
            batch = std::move(*stored);
        }
        if (!batch.empty()) {
            seen = batch.back().revision;
            std::string lines = lines_of(batch);
            if (!co_await stream->write(std::move(lines)))
                co_return;
            continue;
        }
        if (!follow)
            co_return;
        Signal::Waiter waiter = log.changed().waiter(std::chrono::steady_clock::now() + kHeartbeat);
        request.peer->on_closed([waiter] { waiter->cancel(); });
        co_await wait_on(waiter);
        if (log.last_revision() == seen && !request.peer->closed()) {
            std::string heartbeat = "\n";
            if (!co_await stream->write(std::move(heartbeat)))
                co_return;
        }
    }
}

asio::awaitable<Response> AdminApi::decisions(Request request) {
    const auto& kept = parts_.context.decisions;
    if (!request.params.contains("id")) {
        json::array listed;
        for (const DecisionRecord& record : kept)
            if (auto document = json::parse(record.document, "a decision"))
                listed.push_back(*document);
        json::object shown{{"items", std::move(listed)}};
        co_return http::json_response(shown);
    }
    for (const DecisionRecord& record : kept)
        if (record.id == request.params["id"])
            if (auto document = json::parse(record.document, "a decision"))
                co_return http::json_response(*document);
    co_return http::error_response(
        Error{ErrorCode::kNotFound,
              fmt::format("no decision has the id '{}'", request.params["id"]), "NotFound", 0});
}

void AdminApi::add_policy_routes(http::Router& router) {
    get(router, "/v1/policy", [this](Request) -> asio::awaitable<Response> {
        std::string text = policies::effective_yaml(parts_.policies.documents());
        std::string tag = "\"" + sha256_hex(text).substr(0, 16) + "\"";
        Response response = http::text_response(std::move(text), 200, "application/yaml");
        response.headers.set("ETag", tag);
        co_return response;
    });
    change(router, "PUT", "/v1/policy",
           [this](Request request) { return put_policy(std::move(request)); });
    change(router, "DELETE", "/v1/policy", [this](Request) -> asio::awaitable<Response> {
        auto writes = parts_.policies.forget_applied();
        if (!writes)
            co_return http::error_response(writes.error());
        parts_.store.post(std::move(*writes), Durability::kIntent, {});
        parts_.context.post(node::DocumentsApplied{parts_.policies.documents()});
        json::object shown{{"applied", true}};
        co_return http::json_response(shown);
    });
}

asio::awaitable<Response> AdminApi::put_policy(Request request) {
    std::string file = "request";
    if (auto named = request.query.find("file"); named != request.query.end())
        file = named->second;
    auto dry = request.query.find("dryRun");
    bool dry_run = dry != request.query.end() && dry->second != "false";
    if (const std::string* wanted = request.headers.find("If-Match")) {
        std::string now = policies::effective_yaml(parts_.policies.documents());
        if (*wanted != "\"" + sha256_hex(now).substr(0, 16) + "\"" && *wanted != "*")
            co_return http::error_response(
                Error{ErrorCode::kFailedPrecondition,
                      "the policy has changed since it was read: read it again", "ETagMismatch", 0},
                412);
    }
    if (dry_run) {
        auto would_be = parts_.policies.preview(request.body, file);
        if (!would_be)
            co_return http::error_response(would_be.error());
        co_return http::text_response(policies::effective_yaml(*would_be), 200, "application/yaml");
    }
    auto writes = parts_.policies.apply(request.body, file);
    if (!writes)
        co_return http::error_response(writes.error());
    parts_.store.post(std::move(*writes), Durability::kIntent, {});
    parts_.context.post(node::DocumentsApplied{parts_.policies.documents()});
    parts_.context.note(false, "node/" + parts_.context.node_name, "PolicyApplied",
                        fmt::format("documents applied from {}", file));
    std::string text = policies::effective_yaml(parts_.policies.documents());
    Response response = http::text_response(std::move(text), 200, "application/yaml");
    co_return response;
}

} // namespace berth
