// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/admin_api.h"

#include "base/json.h"
#include "base/units.h"
#include "cache/weights/fingerprint.h"
#include "scheduler/admin/views.h"
#include "scheduler/admin/wait.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;

namespace {

constexpr std::chrono::seconds kWaitMax{3600};
constexpr std::chrono::seconds kRecordMax{5}; // a disk that does not keep up is the doctor's

// A body is optional: none means all defaults.
Result<json::value> body_of(const Request& request) {
    if (request.body.empty())
        return json::value(json::object());
    return json::parse(request.body, "the request's body");
}

// "200ms", or a number of milliseconds.
Result<std::optional<Nanoseconds>> duration_field(json::Reader& reader, const char* field) {
    const json::value* value = reader.any(field);
    if (value == nullptr || value->is_null())
        return std::optional<Nanoseconds>();
    if (value->is_string()) {
        BERTH_ASSIGN(Nanoseconds duration, parse_duration(std::string_view(value->get_string())));
        return std::optional(duration);
    }
    if (value->is_int64() && value->get_int64() >= 0 && value->get_int64() < 86'400'000)
        return std::optional<Nanoseconds>(std::chrono::milliseconds(value->get_int64()));
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the request's body: field '{}': expected a duration such as \"200ms\"",
                            field));
}

struct PreemptBody {
    policies::Rung mode = policies::Rung::kPause;
    std::optional<Nanoseconds> grace;
    std::string reason;
    std::string request_id;
    bool dry_run = false;
};

Result<PreemptBody> read_preempt(const Request& request, policies::Rung default_mode) {
    BERTH_ASSIGN(json::value document, body_of(request));
    json::Reader reader(document, "the request's body");
    PreemptBody body;
    std::string mode = reader.string("mode", policies::to_string(default_mode));
    body.reason = reader.string("reason", "");
    body.request_id = reader.string("requestId", "");
    body.dry_run = reader.boolean("dryRun", false);
    auto grace = duration_field(reader, "gracePeriod");
    BERTH_TRY(reader.finish());
    if (!grace)
        return fail(grace.error());
    body.grace = *grace;
    BERTH_ASSIGN(body.mode, policies::rung_from(mode));
    return body;
}

struct CommonBody {
    std::string reason;
    std::string request_id;
    bool dry_run = false;
    bool drop = false; // evict: the copies below too
};

Result<CommonBody> read_common(const Request& request) {
    BERTH_ASSIGN(json::value document, body_of(request));
    json::Reader reader(document, "the request's body");
    CommonBody body;
    body.reason = reader.string("reason", "");
    body.request_id = reader.string("requestId", "");
    body.dry_run = reader.boolean("dryRun", false);
    body.drop = reader.boolean("drop", false);
    (void)reader.any("mode");
    (void)reader.any("gracePeriod");
    BERTH_TRY(reader.finish());
    return body;
}

} // namespace

Response AdminApi::operation_reply(const node::OperationId& id, int status) const {
    const OperationEntry* entry = parts_.context.operations.find(id);
    if (entry == nullptr)
        return http::error_response(Error{ErrorCode::kNotFound,
                                          fmt::format("no operation has the id '{}'", id.value),
                                          "NotFound", 0});
    return http::json_response(views::operation(*entry), status);
}

// Accepted means on record: a berthd that starts after this one's death knows the operation too.
asio::awaitable<void> AdminApi::recorded() {
    asio::io_context& io = parts_.context.io;
    auto done =
        std::make_shared<asio::steady_timer>(io, std::chrono::steady_clock::now() + kRecordMax);
    // The store writes in order: what this turn posted is on disk when an empty batch is.
    parts_.store.post({}, Durability::kIntent,
                      [done, &io](Status) { asio::post(io, [done] { done->cancel(); }); });
    (void)co_await done->async_wait(asio::as_tuple(asio::use_awaitable));
}

template <typename Event>
asio::awaitable<Response> AdminApi::begin(std::string request_id, Event event) {
    bool known = false;
    node::OperationId id = parts_.context.operations.begin(request_id, known);
    if (known)
        co_return operation_reply(id, 200);
    event.operation = id;
    parts_.context.post(std::move(event));
    co_await recorded();
    co_return operation_reply(id, 202);
}

void AdminApi::add_operation_routes(http::Router& router) {
    change(router, "POST", "/v1/instances/{name}:preempt",
           [this](Request request) { return preempt(std::move(request)); });
    change(router, "POST", "/v1/instances/{name}:resume",
           [this](Request request) { return resume(std::move(request)); });
    get(router, "/v1/operations", [this](Request) -> asio::awaitable<Response> {
        json::array listed;
        for (const OperationEntry* entry : parts_.context.operations.all())
            listed.push_back(views::operation(*entry));
        json::object shown{{"items", std::move(listed)}};
        co_return http::json_response(shown);
    });
    get(router, "/v1/operations/{id}",
        [this](Request request) { return operation(std::move(request)); });
}

asio::awaitable<Response> AdminApi::preempt(Request request) {
    const node::NodeState& state = parts_.context.state();
    node::InstanceName name(request.params["name"]);
    if (!state.instances.contains(name))
        co_return http::error_response(Error{ErrorCode::kNotFound,
                                             fmt::format("no instance is named '{}'", name.value),
                                             "NotFound", 0});
    policies::Rung first = state.policy.preemption.modes.empty()
                               ? policies::Rung::kPause
                               : state.policy.preemption.modes.front();
    auto body = read_preempt(request, first);
    if (!body)
        co_return http::error_response(body.error());
    node::OperatorPreempt event;
    event.instance = name;
    event.mode = body->mode;
    event.grace = body->grace;
    event.reason = body->reason;
    event.dry_run = body->dry_run;
    co_return co_await begin(body->request_id, std::move(event));
}

asio::awaitable<Response> AdminApi::resume(Request request) {
    node::InstanceName name(request.params["name"]);
    if (!parts_.context.state().instances.contains(name))
        co_return http::error_response(Error{ErrorCode::kNotFound,
                                             fmt::format("no instance is named '{}'", name.value),
                                             "NotFound", 0});
    auto body = read_common(request);
    if (!body)
        co_return http::error_response(body.error());
    node::OperatorResume event;
    event.instance = name;
    event.reason = body->reason;
    event.dry_run = body->dry_run;
    co_return co_await begin(body->request_id, std::move(event));
}

asio::awaitable<Response> AdminApi::operation(Request request) {
    node::OperationId id(request.params["id"]);
    auto until = std::chrono::steady_clock::now();
    if (auto wait = request.query.find("wait"); wait != request.query.end()) {
        auto duration = parse_duration(wait->second);
        if (!duration)
            co_return http::error_response(duration.error());
        until += std::min<Nanoseconds>(*duration, kWaitMax);
    }
    Signal& changed = parts_.context.operations.changed();
    auto running = [this, &id] {
        const OperationEntry* entry = parts_.context.operations.find(id);
        return entry != nullptr && entry->operation.state == node::OperationState::kRunning;
    };
    while (running() && std::chrono::steady_clock::now() < until && !request.peer->closed()) {
        Signal::Waiter waiter = changed.waiter(until);
        request.peer->on_closed([waiter] { waiter->cancel(); });
        co_await wait_on(waiter);
    }
    co_return operation_reply(id, 200);
}

void AdminApi::add_weight_routes(http::Router& router) {
    change(router, "POST", "/v1/weights:load",
           [this](Request request) { return load(std::move(request)); });
    change(router, "POST", "/v1/weights/{id}:pin",
           [this](Request request) { return pin(std::move(request), true); });
    change(router, "POST", "/v1/weights/{id}:unpin",
           [this](Request request) { return pin(std::move(request), false); });
    change(router, "POST", "/v1/weights/{id}:evict",
           [this](Request request) { return evict(std::move(request)); });
    change(router, "POST", "/v1/weights/{id}:verify",
           [this](Request request) { return verify(std::move(request)); });
}

// A set whose checkpoint has changed is no answer to a load.
asio::awaitable<void> AdminApi::look_for_changes(node::LoadRequested wanted) {
    const node::NodeState& state = parts_.context.state();
    std::string path = wanted.path;
    if (const auto* model = state.documents.find_model(wanted.model.value))
        path = model->path;
    std::vector<node::WeightsStale> sets;
    for (const auto& [key, set] : state.weights)
        if (!set.dropping && !node::is_tier(set.device) &&
            std::ranges::any_of(set.keys, [&](const auto& one) { return one.path == path; }))
            sets.push_back({set.id, set.device, path, ""});
    if (state.policy.attach.on_change != policies::OnChange::kReload)
        co_return;
    for (node::WeightsStale& stale : sets) {
        const ResidentSet* set = parts_.context.catalogue.find(stale.set.value, stale.device.value);
        if (set == nullptr)
            continue;
        auto look = [document = set->fingerprint_json, path] {
            return changes_on_disk(document, path);
        };
        Result<std::vector<FieldDifference>> changes =
            co_await run_on(parts_.context.io, parts_.actor.workers(), look);
        if (!changes || changes->empty())
            continue;
        stale.differences = difference_table(*changes);
        parts_.context.post(stale);
    }
}

asio::awaitable<Response> AdminApi::load(Request request) {
    auto document = body_of(request);
    if (!document)
        co_return http::error_response(document.error());
    json::Reader reader(*document, "the request's body");
    node::LoadRequested event;
    event.model = node::ModelName(reader.string("model", ""));
    event.path = reader.string("path", "");
    event.dtype = reader.string("dtype", "auto");
    event.quantization = reader.string("quantization", "none");
    event.device = node::DeviceId(reader.string("device", ""));
    std::string request_id = reader.string("requestId", "");
    (void)reader.boolean("dryRun", false);
    if (event.model.empty() == event.path.empty())
        reader.refuse("model", "give either model or path");
    if (event.quantization != "none" && event.quantization != "fp8-block")
        reader.refuse("quantization", "expected none or fp8-block");
    if (!event.path.empty() && !std::filesystem::path(event.path).is_absolute())
        reader.refuse("path", "expected an absolute path");
    if (auto read = reader.finish(); !read)
        co_return http::error_response(read.error());
    if (!event.path.empty())
        event.path = std::filesystem::path(event.path).lexically_normal().string();
    while (event.path.size() > 1 && event.path.back() == '/')
        event.path.pop_back();
    if (!event.model.empty() &&
        parts_.context.state().documents.find_model(event.model.value) == nullptr)
        co_return http::error_response(
            Error{ErrorCode::kNotFound,
                  fmt::format("no Model is named '{}': name one of the policy's, or give a path",
                              event.model.value),
                  "UnknownModel", 0});
    co_await look_for_changes(event);
    co_return co_await begin(request_id, std::move(event));
}

asio::awaitable<Response> AdminApi::pin(Request request, bool pinned) {
    auto body = read_common(request);
    if (!body)
        co_return http::error_response(body.error());
    node::WeightsPin event;
    event.set = node::WeightSetId(request.params["id"]);
    event.pinned = pinned;
    if (parts_.context.catalogue.find(event.set.value) == nullptr)
        co_return http::error_response(Error{
            ErrorCode::kNotFound, fmt::format("no weight set '{}' is resident", event.set.value),
            "NotResident", 0});
    co_return co_await begin(body->request_id, std::move(event));
}

asio::awaitable<Response> AdminApi::evict(Request request) {
    auto body = read_common(request);
    if (!body)
        co_return http::error_response(body.error());
    node::WeightsEvict event;
    event.set = node::WeightSetId(request.params["id"]);
    event.dry_run = body->dry_run;
    event.drop = body->drop;
    if (node::places_of(parts_.context.state(), event.set).empty())
        co_return http::error_response(Error{
            ErrorCode::kNotFound, fmt::format("no weight set '{}' is resident", event.set.value),
            "NotResident", 0});
    co_return co_await begin(body->request_id, std::move(event));
}

} // namespace berth
