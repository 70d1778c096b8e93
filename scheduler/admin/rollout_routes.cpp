// SPDX-License-Identifier: Apache-2.0
// Rollouts over REST. The body of POST /v1/instances/NAME:rollout is the new document, as for PUT
// /v1/instances/NAME; what is wanted of it stands in the query: pause, inPlace, maxUnavailable,
// reason, requestId, dryRun, file.
#include "base/json.h"
#include "base/number.h"
#include "policies/yaml.h"
#include "scheduler/admin/absent.h"
#include "scheduler/admin/begin_operation.h"
#include "scheduler/admin/bodies.h"
#include "scheduler/admin/instance_document.h"
#include "scheduler/admin/policy_turn.h"
#include "scheduler/admin/views.h"
#include "scheduler/admin/wait.h"

#include <fmt/format.h>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;
using policies::Role;
using Verb = node::OperatorRollout::Verb;

namespace {

Result<bool> flag_of(const Request& request, const std::string& name) {
    const std::string text = query_of(request, name, "false");
    if (text != "true" && text != "false")
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("query parameter '{}': '{}', expected true or false", name, text));
    return text == "true";
}

// What is asked for beside the document.
Result<node::OperatorRollout> options_of(const Request& request) {
    node::OperatorRollout event;
    for (const auto& [name, value] : request.query)
        if (name != "pause" && name != "inPlace" && name != "maxUnavailable" && name != "reason" &&
            name != "requestId" && name != "dryRun" && name != "file")
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("query parameter '{}': known are pause, inPlace, "
                                    "maxUnavailable, reason, requestId, dryRun and file",
                                    name));
    BERTH_ASSIGN(event.pause, flag_of(request, "pause"));
    BERTH_ASSIGN(event.in_place, flag_of(request, "inPlace"));
    const std::string most = query_of(request, "maxUnavailable", "0");
    const auto number = number_in<uint64_t>(most);
    if (!number)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("query parameter 'maxUnavailable': '{}', expected a number of "
                                "processes that may be away: 0 or 1",
                                most));
    event.may_stop = *number > 0;
    if (event.pause && event.in_place)
        return fail(ErrorCode::kInvalidArgument,
                    "pause and inPlace together: in place there is nothing that could wait");
    event.reason = query_of(request, "reason", "");
    event.dry_run = is_dry(request);
    return event;
}

// The document among all others, checked and complete.
Result<policies::InstanceSpec> document_of(const PolicyBook& book, const Request& request,
                                           const std::string& name) {
    const std::string file = query_of(request, "file", "request");
    BERTH_ASSIGN(const std::string text, instance_text(request));
    BERTH_ASSIGN(const policies::Documents sent, policies::parse_fragment(text, file));
    BERTH_TRY(check_is_instance(sent, name, file));
    BERTH_ASSIGN(const PolicyBook::Change change, book.prepare({{file, text}}));
    return *change.after->documents.find_instance(name);
}

} // namespace

namespace views {

json::object rollout(const node::Rollout& r, node::TimePoint now) {
    const auto age = [now](node::TimePoint at) {
        return std::chrono::duration_cast<std::chrono::milliseconds>(now - at).count();
    };
    return {{"instance", r.instance.value},
            {"number", r.number},
            {"phase", to_string(r.phase)},
            {"underWay", r.is_under_way()},
            {"paused", r.paused},
            {"inPlace", r.is_in_place()},
            {"first", r.first.value},
            {"surge", r.surge},
            {"undo", r.undo},
            {"kept", r.adopted},
            {"cause", r.cause},
            {"reason", r.reason},
            {"message", r.message},
            {"startedMs", age(r.started)},
            {"sinceMs", age(r.since)},
            {"gapMs", std::chrono::duration<double, std::milli>(r.gap).count()},
            {"before", policies::effective_yaml(r.before)},
            {"after", policies::effective_yaml(r.after)}};
}

void add_rollout(json::object& shown, const node::NodeState& state,
                 const node::Instance& instance) {
    const std::string& of =
        instance.spec.standby_of.empty() ? instance.name.value : instance.spec.standby_of;
    const auto found = state.rollouts.find(node::InstanceName(of));
    shown["rollout"] = nullptr;
    if (found == state.rollouts.end())
        return;
    const node::Rollout& r = found->second;
    shown["rollout"] = json::object{{"number", r.number},           {"phase", to_string(r.phase)},
                                    {"underWay", r.is_under_way()}, {"paused", r.paused},
                                    {"reason", r.reason},           {"message", r.message}};
}

} // namespace views

void AdminApi::add_rollout_routes(http::Router& router) {
    change(router, Role::kAdmin, "POST", "/v1/instances/{name}:rollout",
           [this](Request request) { return roll_out(std::move(request)); });
    change(router, Role::kOperator, "POST", "/v1/instances/{name}:pauseRollout",
           [this](Request request) { return rollout_asked(std::move(request), Verb::kPause); });
    change(router, Role::kOperator, "POST", "/v1/instances/{name}:resumeRollout",
           [this](Request request) { return rollout_asked(std::move(request), Verb::kResume); });
    change(router, Role::kAdmin, "POST", "/v1/instances/{name}:undoRollout",
           [this](Request request) { return rollout_asked(std::move(request), Verb::kUndo); });
    get(router, "/v1/instances/{name}/rollout",
        [this](Request request) { return get_rollout(std::move(request)); });
    get(router, "/v1/rollouts", [this](Request request) { return rollouts(std::move(request)); });
}

asio::awaitable<Response> AdminApi::roll_out(Request request) {
    request.peer.reset(); // it is not for another thread
    const node::InstanceName name(request.params["name"]);
    const auto& instances = parts_.context.state().instances;
    if (!instances.contains(name))
        co_return absent(instances, "instance", name.value, "InstanceNotFound");
    const Result<std::string> id = request_id_of(request);
    if (!id)
        co_return http::error_response(id.error());
    Result<node::OperatorRollout> event = options_of(request);
    if (!event)
        co_return http::error_response(event.error());
    if (node::is_surge(name))
        co_return http::error_response(
            Error{ErrorCode::kFailedPrecondition,
                  fmt::format("{} is there for a rollout alone, and has no document of its own",
                              name.value),
                  "StandsBy", 0});
    auto prepare = [book = parts_.policies, request, text = name.value] {
        return document_of(book, request, text);
    };
    Result<policies::InstanceSpec> spec =
        co_await run_on(parts_.context.io, parts_.actor.workers().documents, prepare);
    if (!spec)
        co_return http::error_response(spec.error());
    event->instance = name;
    event->spec = std::move(*spec);
    co_return co_await begin(*id, std::move(*event));
}

asio::awaitable<Response> AdminApi::rollout_asked(Request request, Verb verb) {
    node::OperatorRollout event;
    event.instance = node::InstanceName(request.params["name"]);
    event.verb = verb;
    const auto& instances = parts_.context.state().instances;
    if (!instances.contains(event.instance))
        co_return absent(instances, "instance", event.instance.value, "InstanceNotFound");
    auto body = bodies::read_rollout(request.body);
    if (!body)
        co_return http::error_response(body.error());
    event.in_place = body->in_place;
    event.reason = body->reason;
    event.dry_run = body->dry_run;
    co_return co_await begin(body->request_id, std::move(event));
}

asio::awaitable<Response> AdminApi::get_rollout(Request request) {
    const node::InstanceName name(request.params["name"]);
    const node::NodeState& state = parts_.context.state();
    if (!state.instances.contains(name))
        co_return absent(state.instances, "instance", name.value, "InstanceNotFound");
    const auto found = state.rollouts.find(name);
    if (found == state.rollouts.end())
        co_return http::error_response(
            Error{ErrorCode::kNotFound, fmt::format("no rollout of '{}' is on record", name.value),
                  "RolloutNotFound", 0});
    co_return http::json_response(views::rollout(found->second, std::chrono::steady_clock::now()));
}

asio::awaitable<Response> AdminApi::rollouts(Request) {
    json::array listed;
    for (const auto& [name, r] : parts_.context.state().rollouts)
        listed.push_back(views::rollout(r, std::chrono::steady_clock::now()));
    json::object shown{{"items", std::move(listed)}};
    co_return http::json_response(shown);
}

// Once the documents say what a rollout has come to, a restart rests on them alone.
asio::awaitable<void> AdminApi::adopt(policies::InstanceSpec spec) {
    while (policy_busy_)
        co_await wait_on(policy_free_.waiter(std::chrono::steady_clock::time_point::max()));
    const PolicyTurn turn(*this);
    const auto& rollouts = parts_.context.state().rollouts;
    const auto found = rollouts.find(node::InstanceName(spec.name));
    const policies::InstanceSpec* now = parts_.policies.documents().find_instance(spec.name);
    // What was applied meanwhile goes before it.
    if (now == nullptr || found == rollouts.end() || !(*now == found->second.before))
        co_return;
    const policies::SourceText text{"rollout/" + spec.name, policies::effective_yaml(spec)};
    auto prepare = [book = parts_.policies, text] { return book.prepare({text}); };
    Result<PolicyBook::Change> change =
        co_await run_on(parts_.context.io, parts_.actor.workers().documents, prepare);
    Status held = change ? Status() : Status(fail(change.error()));
    if (held) {
        std::string words = fmt::format("instance {} changed by its rollout", spec.name);
        held = co_await commit_documents(*change, std::move(words));
    }
    if (!held)
        parts_.context.post(node::DocumentRefused{node::InstanceName(spec.name), held.error()});
}

} // namespace berth
