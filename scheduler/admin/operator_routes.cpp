// SPDX-License-Identifier: Apache-2.0
// What operators ask beside preempt and resume: hold, release, drain, promote; cordon and drain of
// a device.
#include "scheduler/admin/absent.h"
#include "scheduler/admin/begin_operation.h"
#include "scheduler/admin/bodies.h"

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;
using policies::Role;

void AdminApi::add_operator_routes(http::Router& router) {
    change(router, Role::kOperator, "POST", "/v1/instances/{name}:hold",
           [this](Request request) { return hold(std::move(request), true); });
    change(router, Role::kOperator, "POST", "/v1/instances/{name}:release",
           [this](Request request) { return hold(std::move(request), false); });
    change(router, Role::kOperator, "POST", "/v1/instances/{name}:drain",
           [this](Request request) { return drain(std::move(request)); });
    change(router, Role::kOperator, "POST", "/v1/instances/{name}:promote",
           [this](Request request) { return promote(std::move(request)); });
    change(router, Role::kOperator, "POST", "/v1/devices/{id}:cordon",
           [this](Request request) { return cordon(std::move(request), true); });
    change(router, Role::kOperator, "POST", "/v1/devices/{id}:uncordon",
           [this](Request request) { return cordon(std::move(request), false); });
    change(router, Role::kOperator, "POST", "/v1/devices/{id}:drain",
           [this](Request request) { return drain_device(std::move(request)); });
    look(router, "POST", "/v1/plan", [this](Request request) { return plan(std::move(request)); });
}

template <typename Event, typename Body>
asio::awaitable<Response> AdminApi::ask(Event event, Result<Body> body) {
    if (!body)
        co_return http::error_response(body.error());
    if constexpr (requires { event.timeout; })
        event.timeout = body->timeout;
    event.reason = body->reason;
    event.dry_run = body->dry_run;
    co_return co_await begin(body->request_id, std::move(event));
}

// The instance that the path names must be there.
template <typename Event, typename Body>
asio::awaitable<Response> AdminApi::ask_of_instance(Event event, Request request,
                                                    Result<Body> body) {
    event.instance = node::InstanceName(request.params["name"]);
    const auto& instances = parts_.context.state().instances;
    if (!instances.contains(event.instance))
        co_return absent(instances, "instance", event.instance.value, "InstanceNotFound");
    co_return co_await ask(std::move(event), std::move(body));
}

asio::awaitable<Response> AdminApi::hold(Request request, bool held) {
    node::OperatorHold event;
    event.hold = held;
    return ask_of_instance(std::move(event), request, bodies::read_common(request.body));
}

asio::awaitable<Response> AdminApi::drain(Request request) {
    return ask_of_instance(node::OperatorDrain(), request, bodies::read_drain(request.body));
}

asio::awaitable<Response> AdminApi::promote(Request request) {
    return ask_of_instance(node::OperatorPromote(), request, bodies::read_common(request.body));
}

asio::awaitable<Response> AdminApi::cordon(Request request, bool cordoned) {
    node::DeviceCordon event;
    event.device = node::DeviceId(request.params["id"]);
    const auto& devices = parts_.context.state().devices;
    if (!devices.contains(event.device))
        co_return absent(devices, "device", event.device.value, "DeviceNotFound");
    event.cordoned = cordoned;
    co_return co_await ask(std::move(event), bodies::read_common(request.body));
}

asio::awaitable<Response> AdminApi::drain_device(Request request) {
    node::DeviceDrain event;
    event.device = node::DeviceId(request.params["id"]);
    const auto& devices = parts_.context.state().devices;
    if (!devices.contains(event.device))
        co_return absent(devices, "device", event.device.value, "DeviceNotFound");
    co_return co_await ask(std::move(event), bodies::read_drain(request.body));
}

} // namespace berth
