// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/admin_api.h"

#include "base/units.h"
#include "cache/weights/fingerprint.h"
#include "scheduler/act/record_mapping.h"
#include "scheduler/admin/absent.h"
#include "scheduler/admin/begin_operation.h"
#include "scheduler/admin/bodies.h"
#include "scheduler/admin/views.h"
#include "scheduler/admin/wait.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;
using policies::Role;

namespace {

constexpr std::chrono::seconds kWaitMax{3600};
constexpr std::chrono::seconds kRecordMax{5}; // a disk that does not keep up is the doctor's

// What a load would come to: played on a copy of the state.
node::Operation load_rehearsal(node::NodeState copy, node::LoadRequested event) {
    event.operation = node::OperationId("rehearsal");
    node::Operation operation;
    operation.kind = node::OperationKind::kLoad;
    operation.object = event.model.empty() ? event.path : "model/" + event.model.value;
    operation.message = "would join the load that is under way";
    for (const node::Action& action : node::apply(copy, event, std::chrono::steady_clock::now())) {
        if (const auto* load = std::get_if<node::StartLoad>(&action))
            operation.message = fmt::format(
                "{} would be loaded onto {} from {}", load->key.path, load->key.device.value,
                load->source.empty() ? "the checkpoint" : load->source.value);
        else if (const auto* done = std::get_if<node::OperationDone>(&action))
            operation = done->operation; // resident already, or impossible
    }
    return operation;
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

// Answers as an operation that has ended, and is not written down.
Response AdminApi::rehearsed(const std::string& request_id, node::Operation operation) {
    bool known = false;
    operation.id = parts_.context.operations.begin(request_id, known);
    if (!known) {
        operation.dry_run = true;
        if (operation.state == node::OperationState::kRunning)
            operation.state = node::OperationState::kSucceeded;
        parts_.context.operations.update(operation);
    }
    return operation_reply(operation.id, 200);
}

// What cannot be written down is not begun.
Status AdminApi::recordable() const {
    const auto& trouble = parts_.context.loop->store_trouble();
    if (!trouble)
        return {};
    return fail(ErrorCode::kUnavailable,
                "refused, since it could not be written down: " + trouble->message,
                trouble->reason);
}

// Accepted means on record: a berthd that starts after this one's death knows the operation too.
asio::awaitable<void> AdminApi::recorded() {
    asio::io_context& io = parts_.context.io;
    auto done =
        std::make_shared<asio::steady_timer>(io, std::chrono::steady_clock::now() + kRecordMax);
    // The store writes in order: what this turn posted is on disk when an empty batch is.
    parts_.store.post({}, Durability::kIntent,
                      [done, &io](const Status&) { asio::post(io, [done] { done->cancel(); }); });
    (void)co_await done->async_wait(asio::as_tuple(asio::use_awaitable));
}

asio::awaitable<std::optional<Response>> AdminApi::begun_earlier(std::string request_id) {
    if (request_id.empty() || parts_.context.operations.knows(request_id))
        co_return std::nullopt;
    using Found = Result<std::optional<OperationRecord>>;
    asio::io_context& io = parts_.context.io;
    auto found = std::make_shared<std::optional<Found>>();
    auto done =
        std::make_shared<asio::steady_timer>(io, std::chrono::steady_clock::now() + kRecordMax);
    parts_.store.find_operation(request_id, [found, done, &io](Found record) {
        asio::post(io, [found, done, record = std::move(record)]() mutable {
            found->emplace(std::move(record));
            done->cancel();
        });
    });
    (void)co_await done->async_wait(asio::as_tuple(asio::use_awaitable));
    if (!*found)
        co_return http::error_response(
            Error{ErrorCode::kUnavailable,
                  fmt::format("nothing was begun, since it could not be looked up in time whether "
                              "requestId '{}' has begun it already: send it again",
                              request_id),
                  "StoreSlow", 0});
    if (!**found)
        co_return http::error_response((*found)->error());
    const std::optional<OperationRecord>& record = ***found;
    if (!record)
        co_return std::nullopt;
    auto entry = operation_from(*record);
    if (!entry)
        co_return http::error_response(entry.error());
    co_return http::json_response(views::operation(*entry));
}

void AdminApi::add_operation_routes(http::Router& router) {
    change(router, Role::kOperator, "POST", "/v1/instances/{name}:preempt",
           [this](Request request) { return preempt(std::move(request)); });
    change(router, Role::kOperator, "POST", "/v1/instances/{name}:resume",
           [this](Request request) { return resume(std::move(request)); });
    get(router, "/v1/operations",
        [this](Request request) { return operations(std::move(request)); });
    get(router, "/v1/operations/{id}",
        [this](Request request) { return operation(std::move(request)); });
}

asio::awaitable<Response> AdminApi::preempt(Request request) {
    const node::NodeState& state = parts_.context.state();
    node::InstanceName name(request.params["name"]);
    if (!state.instances.contains(name))
        co_return absent(state.instances, "instance", name.value, "InstanceNotFound");
    policies::Rung first = state.policy.preemption.modes.empty()
                               ? policies::Rung::kPause
                               : state.policy.preemption.modes.front();
    auto body = bodies::read_preempt(request.body, first);
    if (!body)
        co_return http::error_response(body.error());
    node::OperatorPreempt event;
    event.instance = name;
    event.mode = body->mode;
    event.grace = body->grace;
    event.grant_bytes = body->grant_bytes;
    event.reason = body->reason;
    event.dry_run = body->dry_run;
    co_return co_await begin(body->request_id, std::move(event));
}

asio::awaitable<Response> AdminApi::resume(Request request) {
    node::InstanceName name(request.params["name"]);
    const auto& instances = parts_.context.state().instances;
    if (!instances.contains(name))
        co_return absent(instances, "instance", name.value, "InstanceNotFound");
    auto body = bodies::read_common(request.body);
    if (!body)
        co_return http::error_response(body.error());
    node::OperatorResume event;
    event.instance = name;
    event.reason = body->reason;
    event.dry_run = body->dry_run;
    co_return co_await begin(body->request_id, std::move(event));
}

// Oldest first; ?kind= ?state= ?object= ?instance= keep those that are so.
asio::awaitable<Response> AdminApi::operations(Request request) {
    auto is_wanted = [&request](const char* name, std::string_view value) {
        const auto wanted = request.query.find(name);
        return wanted == request.query.end() || wanted->second == value;
    };
    for (const auto& [name, value] : request.query)
        if (name != "kind" && name != "state" && name != "object" && name != "instance")
            co_return http::error_response(
                Error{ErrorCode::kInvalidArgument,
                      fmt::format(
                          "query parameter '{}': known are kind, state, object and instance", name),
                      "", 0});
    json::array listed;
    for (const OperationEntry* entry : parts_.context.operations.all()) {
        const node::Operation& one = entry->operation;
        if (is_wanted("kind", node::to_string(one.kind)) &&
            is_wanted("state", node::to_string(one.state)) && is_wanted("object", one.object) &&
            is_wanted("instance", one.instance.value))
            listed.push_back(views::operation(*entry));
    }
    json::object shown{{"items", std::move(listed)}};
    co_return http::json_response(shown);
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
    PeerWaits waits(*request.peer);
    while (running() && std::chrono::steady_clock::now() < until && !request.peer->closed())
        co_await waits.on(changed.waiter(until));
    co_return operation_reply(id, 200);
}

void AdminApi::add_weight_routes(http::Router& router) {
    change(router, Role::kOperator, "POST", "/v1/weights:load",
           [this](Request request) { return load(std::move(request)); });
    change(router, Role::kOperator, "POST", "/v1/weights/{id}:pin",
           [this](Request request) { return pin(std::move(request), true); });
    change(router, Role::kOperator, "POST", "/v1/weights/{id}:unpin",
           [this](Request request) { return pin(std::move(request), false); });
    change(router, Role::kOperator, "POST", "/v1/weights/{id}:evict",
           [this](Request request) { return evict(std::move(request)); });
    change(router, Role::kOperator, "POST", "/v1/weights/{id}:verify",
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
            co_await run_on(parts_.context.io, parts_.actor.workers().checkpoints, look);
        if (!changes || changes->empty())
            continue;
        stale.differences = difference_table(*changes);
        parts_.context.post(stale);
    }
}

asio::awaitable<Response> AdminApi::load(Request request) {
    auto body = bodies::read_load(request.body);
    if (!body)
        co_return http::error_response(body.error());
    node::LoadRequested event;
    event.model = node::ModelName(body->model);
    event.path = body->path;
    event.dtype = body->dtype;
    event.quantization = body->quantization;
    event.device = node::DeviceId(body->device);
    event.rank = body->rank;
    if (!event.model.empty()) {
        const auto* model = parts_.context.state().documents.find_model(event.model.value);
        if (model == nullptr)
            co_return http::error_response(Error{
                ErrorCode::kNotFound,
                fmt::format("no Model is named '{}': name one of the policy's, or give a path",
                            event.model.value),
                "UnknownModel", 0});
        if (!event.device.empty() && model->tensor_parallel != body->ranks)
            co_return http::error_response(
                Error{ErrorCode::kFailedPrecondition,
                      fmt::format("Model '{}' is of {} ranks, {} device{} named: name one for each "
                                  "rank, in their order",
                                  event.model.value, model->tensor_parallel, body->ranks,
                                  body->ranks == 1 ? " is" : "s are"),
                      "RanksDiffer", 0});
    }
    if (body->dry_run)
        co_return rehearsed(body->request_id, load_rehearsal(parts_.context.state(), event));
    co_await look_for_changes(event);
    co_return co_await begin(body->request_id, std::move(event));
}

asio::awaitable<Response> AdminApi::pin(Request request, bool pinned) {
    auto body = bodies::read_common(request.body);
    if (!body)
        co_return http::error_response(body.error());
    node::WeightsPin event;
    event.set = node::WeightSetId(request.params["id"]);
    event.pinned = pinned;
    if (parts_.context.catalogue.find(event.set.value) == nullptr)
        co_return http::error_response(Error{
            ErrorCode::kNotFound, fmt::format("no weight set '{}' is resident", event.set.value),
            "NotResident", 0});
    if (body->dry_run) {
        node::Operation operation;
        operation.kind = pinned ? node::OperationKind::kPin : node::OperationKind::kUnpin;
        operation.object = "weights/" + event.set.value;
        operation.message =
            pinned ? "would be kept, whoever needs room" : "would go when somebody needs room";
        co_return rehearsed(body->request_id, std::move(operation));
    }
    co_return co_await begin(body->request_id, std::move(event));
}

asio::awaitable<Response> AdminApi::evict(Request request) {
    auto body = bodies::read_common(request.body);
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
