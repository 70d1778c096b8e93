// SPDX-License-Identifier: Apache-2.0
// The policy over REST. Bodies are YAML (with ?file=NAME for errors and relative paths), or JSON
// {"files": [{"file": ..., "text": ...}]} for several files that hold together or not at all.
#include "scheduler/admin/admin_api.h"

#include "base/json.h"
#include "policies/difference.h"
#include "policies/yaml.h"
#include "scheduler/admin/policy_turn.h"
#include "scheduler/admin/wait.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;

namespace {

constexpr std::chrono::seconds kStoreMax{5};

Result<std::vector<policies::SourceText>> texts_of(const Request& request) {
    const std::string* type = request.headers.find("Content-Type");
    if (type == nullptr || !type->starts_with("application/json"))
        return std::vector{
            policies::SourceText{query_of(request, "file", "request"), request.body}};
    BERTH_ASSIGN(const json::value document, json::parse(request.body, "the request's body"));
    json::Reader reader(document, "the request's body");
    const json::value* files = reader.any("files");
    if (files == nullptr || !files->is_array())
        reader.refuse("files", "expected a list of {file, text}");
    BERTH_TRY(reader.finish());
    if (files->get_array().size() > policies::kYamlFilesMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the request's body: more than {} files", policies::kYamlFilesMax));
    std::vector<policies::SourceText> texts;
    for (const json::value& one : files->get_array()) {
        json::Reader fields(one, "the request's body: files");
        policies::SourceText text{fields.string("file"), fields.string("text")};
        BERTH_TRY(fields.finish());
        for (const policies::SourceText& other : texts)
            if (other.file == text.file)
                return fail(ErrorCode::kInvalidArgument,
                            fmt::format("the request's body: file '{}' is given twice", text.file));
        texts.push_back(std::move(text));
    }
    return texts;
}

json::array names_of(const policies::Documents& documents) {
    json::array names;
    if (documents.policy)
        names.emplace_back("ColocationPolicy");
    for (const auto& one : documents.models)
        names.emplace_back("Model/" + one.name);
    for (const auto& one : documents.instances)
        names.emplace_back("Instance/" + one.name);
    return names;
}

json::array strings(const std::vector<std::string>& texts) {
    return json::array(texts.begin(), texts.end());
}

json::object difference_json(const policies::Difference& difference,
                             const std::set<std::string>& alive) {
    json::array changes, restarted;
    for (const policies::FieldChange& one : difference.changes)
        changes.push_back(json::object{{"document", one.document},
                                       {"field", one.field},
                                       {"before", one.before},
                                       {"after", one.after}});
    for (const std::string& name : difference.restarted)
        if (alive.contains(name))
            restarted.emplace_back(name);
    return {{"changes", std::move(changes)},
            {"added", strings(difference.added)},
            {"removed", strings(difference.removed)},
            {"restarted", std::move(restarted)}};
}

Result<PolicyBook::Change> prepared(const PolicyBook& book, const Request& request) {
    if (request.method == "DELETE")
        return book.prepare_files_alone();
    BERTH_ASSIGN(const std::vector<policies::SourceText> texts, texts_of(request));
    return book.prepare(texts);
}

// What a change adds: "/a.yaml, /b.yaml".
std::string files_of(const PolicyBook::Change& change) {
    std::string names;
    for (const StoreWrite& write : change.writes)
        if (const auto* record = std::get_if<PolicyRecord>(&write))
            names +=
                (names.empty() ? "" : ", ") + record->source.substr(record->source.find(' ') + 1);
    return names;
}

Response yaml_response(std::string text, const std::string& tag) {
    Response response = http::text_response(std::move(text), 200, "application/yaml");
    if (!tag.empty())
        response.headers.set("ETag", tag);
    return response;
}

} // namespace

void AdminApi::add_policy_routes(http::Router& router) {
    get(router, "/v1/policy", [this](Request request) -> asio::awaitable<Response> {
        const std::string& tag = parts_.policies.tag();
        if (const std::string* known = request.headers.find("If-None-Match");
            known != nullptr && is_matched(*known, tag)) {
            Response unchanged = yaml_response("", tag);
            unchanged.status = 304;
            co_return unchanged;
        }
        co_return yaml_response(parts_.policies.effective(), tag);
    });
    change(router, policies::Role::kAdmin, "PUT", "/v1/policy",
           [this](Request request) { return put_policy(std::move(request)); });
    change(router, policies::Role::kAdmin, "DELETE", "/v1/policy",
           [this](Request request) { return put_policy(std::move(request)); });
    look(router, "POST", "/v1/policy:validate",
         [this](Request request) { return validate_policy(std::move(request)); });
    look(router, "POST", "/v1/policy:diff",
         [this](Request request) { return diff_policy(std::move(request)); });
}

asio::awaitable<Response> AdminApi::validate_policy(Request request) {
    request.peer.reset(); // it is not for another thread
    auto work = [book = parts_.policies, request]() -> Response {
        auto texts = texts_of(request);
        auto change =
            texts ? book.prepare(*texts) : Result<PolicyBook::Change>(fail(texts.error()));
        if (!change)
            return http::error_response(change.error());
        json::object shown{{"valid", true},
                           {"documents", names_of(policies::parse_together(*texts).value())},
                           {"advice", strings(policies::advice(change->after->documents))},
                           {"effective", change->after->effective}};
        return http::json_response(shown);
    };
    co_return co_await run_on(parts_.context.io, parts_.actor.workers().questions, work);
}

asio::awaitable<Response> AdminApi::diff_policy(Request request) {
    request.peer.reset(); // it is not for another thread
    // Only one that runs can be started again.
    std::set<std::string> alive;
    for (const auto& [name, instance] : parts_.context.state().instances)
        if (instance.process_alive)
            alive.insert(name.value);
    auto work = [book = parts_.policies, request, alive]() -> Response {
        auto texts = texts_of(request);
        auto change =
            texts ? book.prepare(*texts) : Result<PolicyBook::Change>(fail(texts.error()));
        if (!change)
            return http::error_response(change.error());
        json::object shown = difference_json(
            policies::difference_between(book.documents(), change->after->documents), alive);
        shown["etag"] = book.tag();
        return http::json_response(shown);
    };
    co_return co_await run_on(parts_.context.io, parts_.actor.workers().questions, work);
}

// Holds from now on, once it is on disk. The caller has the turn.
asio::awaitable<Status> AdminApi::commit_documents(PolicyBook::Change change, std::string words) {
    if (Status can = recordable(); !can)
        co_return can;
    Status held = co_await stored(change.writes);
    if (held)
        held = parts_.policies.commit(change);
    if (!held) { // the store writes in order: whatever became of the first, this follows it
        parts_.store.post(change.undo, Durability::kIntent, {});
        co_return held;
    }
    parts_.context.post(node::DocumentsApplied{parts_.policies.documents()});
    parts_.context.note(false, "node/" + parts_.context.node_name, "PolicyApplied",
                        std::move(words));
    co_return Status();
}

// PUT lays documents over those that hold; DELETE takes away all that was laid so.
asio::awaitable<Response> AdminApi::put_policy(Request request) {
    request.peer.reset(); // it is not for another thread
    const Result<std::string> id = request_id_of(request);
    if (!id)
        co_return http::error_response(id.error());
    while (policy_busy_)
        co_await wait_on(policy_free_.waiter(std::chrono::steady_clock::time_point::max()));
    const PolicyTurn turn(*this);
    if (done_requests_.knows(request, *id))
        co_return yaml_response(parts_.policies.effective(), parts_.policies.tag());
    if (Status as_meant = preconditions(request, "the policy", parts_.policies.tag()); !as_meant)
        co_return change_refused(as_meant.error());
    // Reading and printing a thousand documents takes longer than a decision may wait.
    auto prepare = [book = parts_.policies, request] { return prepared(book, request); };
    Result<PolicyBook::Change> change =
        co_await run_on(parts_.context.io, parts_.actor.workers().documents, prepare);
    if (!change)
        co_return http::error_response(change.error());
    if (is_dry(request))
        co_return yaml_response(change->after->effective, "");
    std::string words = request.method == "DELETE" ? "back to the documents of the files"
                                                   : "documents applied from " + files_of(*change);
    if (Status held = co_await commit_documents(*change, std::move(words)); !held)
        co_return http::error_response(held.error());
    done_requests_.keep(request, *id);
    co_return yaml_response(parts_.policies.effective(), parts_.policies.tag());
}

// Until the writes are on disk. A disk that refuses keeps them waiting, and then nothing holds.
asio::awaitable<Status> AdminApi::stored(std::vector<StoreWrite> writes) {
    asio::io_context& io = parts_.context.io;
    auto outcome = std::make_shared<std::optional<Status>>();
    auto done =
        std::make_shared<asio::steady_timer>(io, std::chrono::steady_clock::now() + kStoreMax);
    parts_.store.post(std::move(writes), Durability::kIntent, [outcome, done, &io](Status status) {
        asio::post(io, [outcome, done, status] {
            *outcome = status;
            done->cancel();
        });
    });
    (void)co_await done->async_wait(asio::as_tuple(asio::use_awaitable));
    if (*outcome)
        co_return **outcome;
    co_return fail(ErrorCode::kUnavailable,
                   "nothing was changed, as it could not be written down in time: see berth doctor",
                   "StoreSlow");
}

} // namespace berth
