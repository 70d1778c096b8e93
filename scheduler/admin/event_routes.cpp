// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/admin_api.h"

#include "base/json.h"
#include "base/number.h"
#include "scheduler/admin/views.h"
#include "scheduler/admin/wait.h"

#include <fmt/format.h>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;
using policies::Role;

namespace {

constexpr size_t kEventsAtOnce = 500;
// An idle watch hears an empty line now and then, so that dead peers are noticed.
constexpr std::chrono::seconds kHeartbeat{15};

Result<int64_t> number_of(const Request& request, const char* name, int64_t fallback) {
    auto found = request.query.find(name);
    if (found == request.query.end())
        return fallback;
    const std::string& text = found->second;
    const auto number = number_in<int64_t>(text);
    if (!number || *number < 0)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("query parameter '{}': expected a number, found '{}'", name, text));
    return *number;
}

std::string lines_of(const std::vector<EventRecord>& records) {
    std::string lines;
    for (const EventRecord& record : records)
        lines += json::serialize(views::event(record)) + "\n";
    return lines;
}

// Why the events after `seen` cannot be given without a gap; 0 means: all that there is.
std::optional<std::string> gone_words(const EventLog& log, int64_t seen) {
    if (seen != 0 && seen + 1 < log.oldest_revision())
        return fmt::format("events after {} are no longer kept; the oldest is {}: ask with since=0 "
                           "for all that there is",
                           seen, log.oldest_revision());
    if (seen > log.last_revision())
        return fmt::format("no event {} has been given, the last is {}: this node's records are "
                           "others than those that you have read; ask with since=0",
                           seen, log.last_revision());
    return std::nullopt;
}

Response gone_response(const std::string& words) {
    json::object body{{"code", "Gone"}, {"reason", "TooOld"}, {"message", words}};
    return http::json_response(body, 410);
}

// Cheaper than to parse it.
bool mentions(const DecisionRecord& record, const std::string& name) {
    return name.empty() || record.document.find(name) != std::string::npos;
}

bool is_about(const json::object& decision, const std::string& name, bool as_candidate) {
    const auto* object = decision.if_contains("object");
    if (object != nullptr && *object == json::value(name))
        return true;
    const auto* candidates = decision.if_contains("candidates");
    if (!as_candidate || candidates == nullptr || !candidates->is_array())
        return false;
    for (const json::value& one : candidates->get_array())
        if (const auto* fields = one.if_object())
            if (const auto* who = fields->if_contains("name"); who && *who == json::value(name))
                return true;
    return false;
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
        return decision(std::move(request));
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
    std::optional<Response> refusal = refused(Role::kViewer, request);
    auto since = number_of(request, "since", 0);
    if (refusal || !since) {
        Response refused = refusal ? std::move(*refusal) : http::error_response(since.error());
        (void)co_await stream->respond(std::move(refused));
        co_return;
    }
    int64_t seen = *since;
    if (auto gone = gone_words(log, seen)) {
        Response refused = gone_response(*gone);
        (void)co_await stream->respond(std::move(refused));
        co_return;
    }
    auto follow_at = request.query.find("follow");
    bool follow = follow_at != request.query.end() && follow_at->second != "false";
    http::Headers headers;
    if (!co_await stream->start(200, "application/x-ndjson", headers))
        co_return;
    PeerWaits waits(*request.peer);
    while (!request.peer->closed()) {
        std::vector<EventRecord> batch;
        if (log.covers(seen)) {
            batch = log.after(seen, kEventsAtOnce);
        } else {
            auto stored = co_await stored_events(seen);
            // A reader so slow that what it has not seen was dropped is not given a gap: the stream
            // ends, and asking again from there is 410.
            if (!stored || gone_words(log, seen))
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
        co_await waits.on(log.changed().waiter(std::chrono::steady_clock::now() + kHeartbeat));
        if (log.last_revision() == seen && !request.peer->closed()) {
            std::string heartbeat = "\n";
            if (!co_await stream->write(std::move(heartbeat)))
                co_return;
        }
    }
}

// Oldest first. ?object=instance/chat keeps those about it, ?about=instance/chat also those that
// looked at it as a candidate, ?kind=Place those of that kind, ?limit=N the newest.
asio::awaitable<Response> AdminApi::decisions(Request request) {
    auto asked = [&request](const char* name) {
        const auto found = request.query.find(name);
        return found == request.query.end() ? std::string() : found->second;
    };
    auto limit = number_of(request, "limit", NodeContext::kDecisionsMax);
    if (!limit)
        co_return http::error_response(limit.error());
    const std::string object = asked("object"), about = asked("about"), kind = asked("kind");
    json::array listed;
    auto add = [&](const DecisionRecord& record) {
        if ((!kind.empty() && record.kind != kind) || !mentions(record, object) ||
            !mentions(record, about))
            return;
        auto document = json::parse(record.document, "a decision");
        if (!document || !document->is_object())
            return;
        const json::object& one = document->get_object();
        if ((object.empty() || is_about(one, object, false)) &&
            (about.empty() || is_about(one, about, true)))
            listed.push_back(std::move(*document));
    };
    for (const DecisionRecord& record : parts_.context.decisions)
        add(record);
    if (listed.size() > static_cast<size_t>(*limit))
        listed.erase(listed.begin(), listed.end() - *limit);
    json::object shown{{"items", std::move(listed)}};
    co_return http::json_response(shown);
}

asio::awaitable<Response> AdminApi::decision(Request request) {
    const std::string id = request.params["id"];
    const DecisionRecord* found = nullptr;
    for (const DecisionRecord& record : parts_.context.decisions)
        if (record.id == id)
            found = &record;
    if (found != nullptr)
        if (auto document = json::parse(found->document, "a decision"))
            co_return http::json_response(*document);
    co_return http::error_response(
        Error{ErrorCode::kNotFound,
              fmt::format("no decision of late has the id '{}'; see `berth get decisions`", id),
              "NotFound", 0});
}

} // namespace berth
