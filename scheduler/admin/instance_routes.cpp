// SPDX-License-Identifier: Apache-2.0
// One instance over REST: what it is doing, and its document. PUT lays one document of kind
// Instance over what holds, as `berth apply` does; DELETE takes out again what was laid so.
#include "base/json.h"
#include "policies/difference.h"
#include "policies/yaml.h"
#include "scheduler/admin/absent.h"
#include "scheduler/admin/instance_document.h"
#include "scheduler/admin/policy_turn.h"
#include "scheduler/admin/views.h"
#include "scheduler/admin/wait.h"

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;
using policies::Role;

namespace {

// What a PUT would come to.
struct Update {
    PolicyBook::Change change;
    bool created = false, changed = false, restarts = false;
    std::string document, tag;
};

bool wants_yaml(const Request& request) {
    const std::string* accept = request.headers.find("Accept");
    return accept != nullptr && accept->find("yaml") != std::string::npos;
}

Result<Update> update_of(const PolicyBook& book, const Request& request, const std::string& name) {
    const std::string file = query_of(request, "file", "request");
    BERTH_ASSIGN(const std::string text, instance_text(request));
    BERTH_ASSIGN(const policies::Documents sent, policies::parse_fragment(text, file));
    BERTH_TRY(check_is_instance(sent, name, file));
    Update update;
    BERTH_ASSIGN(update.change, book.prepare({{file, text}}));
    const policies::InstanceSpec& after = *update.change.after->documents.find_instance(name);
    const policies::InstanceSpec* before = book.documents().find_instance(name);
    update.created = before == nullptr;
    update.changed = before == nullptr || !(*before == after);
    update.document = policies::effective_yaml(after);
    update.tag = update.change.after->instance_tags.at(name);
    if (before != nullptr)
        update.restarts =
            policies::process_digest(*before, book.documents().find_model(before->model)) !=
            policies::process_digest(after, update.change.after->documents.find_model(after.model));
    return update;
}

Response update_reply(const Update& update, const std::string& name, bool dry_run) {
    json::object shown{{"name", name},
                       {"created", update.created},
                       {"changed", update.changed},
                       {"restarts", update.restarts},
                       {"dryRun", dry_run},
                       {"etag", update.tag},
                       {"document", update.document}};
    Response response = http::json_response(shown, update.created && !dry_run ? 201 : 200);
    response.headers.set("ETag", update.tag);
    return response;
}

// What becomes of an instance whose document is gone.
Response removal_reply(const node::Instance* instance, const std::string& name, bool dry_run,
                       Nanoseconds grace) {
    const bool alive = instance != nullptr && instance->process_alive;
    const std::string state(instance == nullptr ? "gone" : to_string(instance->state));
    json::object shown{
        {"name", name},
        {"state", state},
        {"removing", alive},
        {"dryRun", dry_run},
        {"message",
         alive ? fmt::format("{} ({}, process {}) {} ended with a grace of {}, then it "
                             "is forgotten",
                             name, state, instance->process.pid, dry_run ? "would be" : "is",
                             format_duration(grace))
               : fmt::format("{} ({}) {} forgotten", name, state, dry_run ? "would be" : "is")}};
    return http::json_response(shown, alive && !dry_run ? 202 : 200);
}

} // namespace

void AdminApi::add_instance_routes(http::Router& router) {
    get(router, "/v1/instances/{name}",
        [this](Request request) { return get_instance(std::move(request)); });
    change(router, Role::kAdmin, "PUT", "/v1/instances/{name}",
           [this](Request request) { return put_instance(std::move(request)); });
    change(router, Role::kAdmin, "DELETE", "/v1/instances/{name}",
           [this](Request request) { return delete_instance(std::move(request)); });
}

std::string AdminApi::tag_of_instance(const std::string& name) const {
    const auto& tags = parts_.policies.instance_tags();
    const auto found = tags.find(name);
    return found == tags.end() ? std::string() : found->second;
}

// JSON: what it is doing. With Accept: application/yaml its document, with every default.
asio::awaitable<Response> AdminApi::get_instance(Request request) {
    const std::string& name = request.params["name"];
    const auto& instances = parts_.context.state().instances;
    const auto found = instances.find(node::InstanceName(name));
    const policies::InstanceSpec* spec = parts_.policies.documents().find_instance(name);
    const bool yaml = wants_yaml(request);
    if (found == instances.end() || (yaml && spec == nullptr))
        co_return absent(instances, "instance", name, "InstanceNotFound");
    const std::string tag = tag_of_instance(name);
    Response response;
    if (yaml) {
        response = http::text_response(policies::effective_yaml(*spec), 200, "application/yaml");
    } else {
        json::object shown = views::instance(found->second, std::chrono::steady_clock::now());
        shown["log"] = parts_.context.paths.engine_log(found->first);
        shown["definedAt"] = spec == nullptr ? std::string() : spec->origin.text();
        shown["etag"] = tag;
        shown["removing"] = found->second.remove_wanted;
        views::add_start(shown, parts_.context, found->second);
        views::add_rollout(shown, parts_.context.state(), found->second);
        views::add_ranks(shown, parts_.context, found->second,
                         parts_.actor.crews().find(found->first));
        response = http::json_response(shown);
    }
    if (!tag.empty())
        response.headers.set("ETag", tag);
    co_return response;
}

asio::awaitable<Response> AdminApi::put_instance(Request request) {
    request.peer.reset(); // it is not for another thread
    const std::string name = request.params["name"];
    const Result<std::string> id = request_id_of(request);
    if (!id)
        co_return http::error_response(id.error());
    while (policy_busy_)
        co_await wait_on(policy_free_.waiter(std::chrono::steady_clock::time_point::max()));
    const PolicyTurn turn(*this);
    if (done_requests_.knows(request, *id)) {
        const auto* now = parts_.policies.documents().find_instance(name);
        if (now == nullptr)
            co_return http::error_response(
                Error{ErrorCode::kNotFound,
                      fmt::format("instance {} was put by this request already, and has been "
                                  "deleted since; to put it again send another requestId",
                                  name),
                      "InstanceNotFound", 0});
        Update done;
        done.tag = tag_of_instance(name);
        done.document = policies::effective_yaml(*now);
        co_return update_reply(done, name, is_dry(request));
    }
    if (Status as_meant = preconditions(request, "instance " + name, tag_of_instance(name));
        !as_meant)
        co_return change_refused(as_meant.error());
    auto prepare = [book = parts_.policies, request, name] {
        return update_of(book, request, name);
    };
    Result<Update> update =
        co_await run_on(parts_.context.io, parts_.actor.workers().documents, prepare);
    if (!update)
        co_return http::error_response(update.error());
    const bool dry_run = is_dry(request);
    if (!dry_run && update->changed) {
        std::string words =
            fmt::format("instance {} {}", name, update->created ? "created" : "changed");
        if (Status held = co_await commit_documents(update->change, std::move(words)); !held)
            co_return http::error_response(held.error());
    }
    if (!dry_run)
        done_requests_.keep(request, *id);
    co_return update_reply(*update, name, dry_run);
}

asio::awaitable<Response> AdminApi::delete_instance(Request request) {
    request.peer.reset(); // it is not for another thread
    const std::string name = request.params["name"];
    const Result<std::string> id = request_id_of(request);
    if (!id)
        co_return http::error_response(id.error());
    while (policy_busy_)
        co_await wait_on(policy_free_.waiter(std::chrono::steady_clock::time_point::max()));
    const PolicyTurn turn(*this);
    const node::NodeState& state = parts_.context.state();
    const Nanoseconds grace = state.policy.preemption.grace_period;
    const auto shown = [&state, &name]() -> const node::Instance* {
        const auto found = state.instances.find(node::InstanceName(name));
        return found == state.instances.end() ? nullptr : &found->second;
    };
    const std::string tag = tag_of_instance(name);
    const bool is_done = done_requests_.knows(request, *id);
    if (is_done && !tag.empty())
        co_return http::error_response(
            Error{ErrorCode::kFailedPrecondition,
                  fmt::format("instance {} was deleted by this request already, and has been "
                              "defined again since; to delete it send another requestId",
                              name),
                  "Redefined", 0});
    if (is_done || (tag.empty() && shown() != nullptr)) // gone, or on its way
        co_return removal_reply(shown(), name, is_dry(request), grace);
    if (tag.empty())
        co_return absent(state.instances, "instance", name, "InstanceNotFound");
    if (Status as_meant = preconditions(request, "instance " + name, tag); !as_meant)
        co_return change_refused(as_meant.error());
    auto prepare = [book = parts_.policies, name] { return book.prepare_without(name); };
    Result<PolicyBook::Change> change =
        co_await run_on(parts_.context.io, parts_.actor.workers().documents, prepare);
    if (!change)
        co_return http::error_response(change.error());
    const Response reply = removal_reply(shown(), name, is_dry(request), grace);
    if (is_dry(request))
        co_return reply;
    std::string words = fmt::format("instance {} deleted", name);
    if (Status held = co_await commit_documents(*change, std::move(words)); !held)
        co_return http::error_response(held.error());
    done_requests_.keep(request, *id);
    co_return reply;
}

} // namespace berth
