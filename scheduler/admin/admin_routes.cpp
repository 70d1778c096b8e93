// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/admin_api.h"

#include "base/json.h"
#include "scheduler/admin/doctor.h"
#include "scheduler/admin/long_lists.h"
#include "scheduler/admin/metrics_text.h"
#include "scheduler/admin/views.h"
#include "scheduler/admin/wait.h"

#include <fmt/format.h>

#include <unistd.h>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;

namespace {

Response not_found(std::string_view kind, const std::string& name) {
    return http::error_response(
        Error{ErrorCode::kNotFound, fmt::format("no {} is named '{}'", kind, name), "NotFound", 0});
}

// A body of JSON text.
Response json_text(std::string json) {
    return http::text_response(std::move(json) + "\n", 200, "application/json");
}

Response items(std::string_view listed) {
    return json_text(fmt::format("{{\"items\":{}}}", listed));
}

// The backends and rungs of this node, and what is not there and why.
json::object capabilities_json(const NodeContext& context) {
    json::array backends;
    bool host = false;
    bool cuda = false;
    for (const auto& [id, environment] : context.environments) {
        host = host || environment.device_kind == "host";
        cuda = cuda || environment.device_kind == "cuda";
    }
    backends.push_back(
        json::object{{"name", "host"},
                     {"available", host},
                     {"message", host ? "" : "no host device is configured (spec.devices)"}});
    backends.push_back(
        json::object{{"name", "cuda"},
                     {"available", cuda},
                     {"message", cuda ? ""
                                 : context.nvml == nullptr
                                     ? "no NVIDIA driver: " + context.nvml_absent
                                     : std::string("no GPU is configured (spec.devices)")}});
    json::array rungs;
    for (const char* rung : {"Pause", "Shrink", "Offload", "Evict"})
        rungs.push_back(json::object{{"name", rung}, {"available", true}, {"message", ""}});
    json::array drivers;
    for (const char* driver : {"berth", "process"})
        drivers.push_back(json::object{{"name", driver}, {"available", true}, {"message", ""}});
    return {{"backends", std::move(backends)},
            {"rungs", std::move(rungs)},
            {"drivers", std::move(drivers)}};
}

} // namespace

namespace {

asio::awaitable<Response> answered(Response response) {
    co_return response;
}

} // namespace

AdminApi::AdminApi(Parts parts) : parts_(std::move(parts)), audit_(parts_.context) {
    parts_.context.adopt_document = [this](const policies::InstanceSpec& spec) {
        tasks_.start("adopt " + spec.name, adopt(spec));
    };
}

std::optional<Response> AdminApi::refused(policies::Role role, const Request& request) {
    Caller caller = parts_.access.identify(request);
    Status may = parts_.access.allows(caller, role, request);
    if (may)
        return std::nullopt;
    audit_.refused(parts_.access.named(caller, request), request, may.error());
    if (caller.is_known)
        return http::error_response(may.error());
    Response response = http::error_response(may.error(), 401);
    response.headers.set("WWW-Authenticate", "Bearer realm=\"berth\"");
    return response;
}

asio::awaitable<Response> AdminApi::audited(std::shared_ptr<const http::Handler> handler,
                                            Request request) {
    Caller caller = parts_.access.named(parts_.access.identify(request), request);
    Audit::Entry entry = audit_.begin(caller, request);
    try {
        Response response = co_await (*handler)(std::move(request));
        audit_.done(entry, response);
        co_return response;
    } catch (...) {
        audit_.broken_off(entry);
        throw;
    }
}

void AdminApi::get(http::Router& router, const char* path, http::Handler handler) {
    look(router, "GET", path, std::move(handler));
}

void AdminApi::look(http::Router& router, const char* method, const char* path,
                    http::Handler handler) {
    router.add(method, path, [this, handler = std::move(handler)](Request request) {
        if (auto refusal = refused(policies::Role::kViewer, request))
            return answered(std::move(*refusal));
        return handler(std::move(request));
    });
}

void AdminApi::change(http::Router& router, policies::Role role, const char* method,
                      const char* path, http::Handler handler) {
    auto shared = std::make_shared<const http::Handler>(std::move(handler));
    router.add(method, path, [this, role, shared](Request request) {
        if (auto refusal = refused(role, request))
            return answered(std::move(*refusal));
        return audited(shared, std::move(request));
    });
}

http::Router AdminApi::routes() {
    http::Router router;
    add_node_routes(router);
    add_list_routes(router);
    add_operation_routes(router);
    add_operator_routes(router);
    add_weight_routes(router);
    add_event_routes(router);
    add_policy_routes(router);
    add_instance_routes(router);
    add_rollout_routes(router);
    return router;
}

void AdminApi::add_node_routes(http::Router& router) {
    get(router, "/healthz",
        [](Request) -> asio::awaitable<Response> { co_return http::text_response("ok\n"); });
    get(router, "/readyz", [this](Request) -> asio::awaitable<Response> {
        if (const auto& trouble = parts_.context.loop->store_trouble(); ready_ && trouble)
            co_return http::text_response(
                fmt::format("{}: {}\n", trouble->reason, trouble->message), 503);
        co_return ready_ ? http::text_response("ok\n") : http::text_response("recovering\n", 503);
    });
    get(router, "/version", [this](Request) -> asio::awaitable<Response> {
        json::object shown{
            {"version", parts_.version}, {"protocol", protocol::kVersion}, {"api", "v1"}};
        co_return http::json_response(shown);
    });
    get(router, "/metrics", [this](Request) -> asio::awaitable<Response> {
        co_return http::text_response(metrics_text(parts_.context, parts_.version), 200,
                                      "text/plain; version=0.0.4; charset=utf-8");
    });
    get(router, "/v1/capabilities", [this](Request) -> asio::awaitable<Response> {
        json::object shown = capabilities_json(parts_.context);
        co_return http::json_response(shown);
    });
    get(router, "/v1/node", [this](Request request) { return node(std::move(request)); });
    get(router, "/v1/doctor", [this](Request request) { return doctor(std::move(request)); });
    get(router, "/v1/devices", [this](Request request) { return devices(std::move(request)); });
    get(router, "/v1/devices/{id}",
        [this](Request request) { return devices(std::move(request)); });
}

void AdminApi::add_list_routes(http::Router& router) {
    get(router, "/v1/weights", [this](Request) -> asio::awaitable<Response> {
        std::string listed = co_await long_lists::weights(&parts_.context);
        co_return items(listed);
    });
    get(router, "/v1/weights/{id}", [this](Request request) -> asio::awaitable<Response> {
        const std::string& id = request.params["id"];
        for (const views::WeightsLine& line : views::weights_lines(parts_.context.state()))
            if (views::id_of(line) == id)
                if (auto shown = views::weights_line(parts_.context, line))
                    co_return http::json_response(*shown);
        co_return not_found("weight set", id);
    });
    get(router, "/v1/instances", [this](Request) -> asio::awaitable<Response> {
        std::string listed = co_await long_lists::instances(&parts_.context);
        co_return items(listed);
    });
}

asio::awaitable<Response> AdminApi::node(Request) {
    NodeContext& context = parts_.context;
    views::DriverBytes driver = co_await driver_figures_.now();
    std::string devices = co_await long_lists::devices(&context, driver);
    std::string instances = co_await long_lists::instances(&context);
    std::string weights = co_await long_lists::weights(&context);
    json::object keeper{{"kind", parts_.actor.keeper().is_systemd() ? "systemd" : "process"},
                        {"pid", parts_.actor.keeper().pid()},
                        {"entries", context.catalogue.size() + context.gates.all().size()},
                        {"restarts", parts_.actor.keeper().restarts()}};
    const ZygoteLink::Report report = parts_.actor.zygote().report();
    json::object zygote{{"state", report.state},       {"why", report.why},
                        {"pid", report.pid},           {"forks", report.forks},
                        {"restarts", report.restarts}, {"startMs", report.start_ms}};
    json::object shown{{"name", context.node_name},
                       {"pid", static_cast<int>(::getpid())},
                       {"version", parts_.version},
                       {"uptimeMs", wall_clock_ms() - parts_.started_ms},
                       {"ready", ready_},
                       {"mode", policies::to_string(context.state().policy.mode)},
                       {"revision", context.events.last_revision()},
                       {"recoverMs", context.metrics.recovery_seconds * 1e3},
                       {"keeper", std::move(keeper)},
                       {"zygote", std::move(zygote)},
                       {"database", views::database(parts_.store, *context.loop)},
                       {"sessions", parts_.actor.engines().sessions()},
                       {"tiers", views::tiers(context)},
                       {"rssBytes", views::resident_bytes()}};
    std::string text = json::serialize(shown);
    text.pop_back(); // the lists go in as text before the end
    text +=
        fmt::format(R"(,"devices":{},"instances":{},"weights":{}}})", devices, instances, weights);
    co_return json_text(std::move(text));
}

asio::awaitable<Response> AdminApi::devices(Request request) {
    NodeContext& context = parts_.context;
    views::DriverBytes driver = co_await driver_figures_.now();
    if (!request.params.contains("id")) {
        std::string listed = co_await long_lists::devices(&context, driver);
        co_return items(listed);
    }
    const auto& known = context.state().devices;
    const auto found = known.find(node::DeviceId(request.params["id"]));
    if (found == known.end() || !context.environments.contains(found->first))
        co_return not_found("device", request.params["id"]);
    json::object shown = views::device(context, found->second, driver);
    co_return http::json_response(shown);
}

asio::awaitable<Response> AdminApi::doctor(Request) {
    auto ask = [input = doctor_input(parts_.context, parts_.actor.keeper(),
                                     parts_.actor.zygote())] { return examine(input); };
    std::vector<Check> checks =
        co_await run_on(parts_.context.io, parts_.actor.workers().driver, ask);
    json::array listed;
    for (const Check& check : checks)
        listed.push_back(json::object{{"name", check.name},
                                      {"ok", check.ok},
                                      {"message", check.message},
                                      {"remedy", check.remedy}});
    json::object shown{{"checks", std::move(listed)}};
    co_return http::json_response(shown);
}

} // namespace berth
