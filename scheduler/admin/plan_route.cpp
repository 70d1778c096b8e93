// SPDX-License-Identifier: Apache-2.0
// POST /v1/plan: what would happen if. The body is an Instance's YAML (with ?file=NAME for errors),
// or JSON {"class": ..., "memory": "8Gi", "device": ...}. Nothing is changed or recorded.
#include "scheduler/admin/admin_api.h"

#include "base/folder.h"
#include "base/json.h"
#include "policies/yaml.h"
#include "scheduler/act/record_mapping.h"
#include "scheduler/admin/bodies.h"
#include "scheduler/admin/wait.h"
#include "scheduler/admin/what_if.h"

#include <fmt/format.h>

#include <filesystem>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;

namespace {

int64_t milliseconds(Nanoseconds duration) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

// What a checkpoint that was never loaded holds, as its files tell.
uint64_t checkpoint_bytes(const std::string& path) {
    uint64_t bytes = 0;
    const auto files = entries_of(path);
    if (!files)
        return bytes; // a folder that cannot be read holds nothing that could be loaded
    for (const std::string& file : *files) {
        std::error_code error;
        if (!file.ends_with(".safetensors"))
            continue;
        if (const auto size = std::filesystem::file_size(file, error); !error)
            bytes += size;
    }
    return bytes;
}

// An instance of that class that asks for that much and is nothing but its bytes.
Result<WhatIf::Question> question_of(const bodies::Need& need, const node::NodeState& state) {
    WhatIf::Question question;
    question.documents = state.documents;
    policies::InstanceSpec spec;
    spec.name = "what-if";
    while (question.documents.find_instance(spec.name) != nullptr)
        spec.name += "-more";
    const policies::PriorityClass* of_class = need.class_name.empty()
                                                  ? state.policy.default_class()
                                                  : state.policy.find_class(need.class_name);
    if (of_class == nullptr) {
        std::string known;
        for (const policies::PriorityClass& one : state.policy.classes)
            known += (known.empty() ? "" : ", ") + one.name;
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("no priority class is named '{}'; known: {}", need.class_name, known),
            "UnknownClass");
    }
    if (!need.device.empty() && !state.devices.contains(node::DeviceId(need.device)))
        return fail(
            ErrorCode::kNotFound,
            fmt::format("no device '{}' on this node; see `berth get devices`", need.device),
            "DeviceNotFound");
    spec.class_name = of_class->name;
    spec.memory_request_bytes = spec.memory_limit_bytes = need.bytes;
    if (!need.device.empty())
        spec.devices = {need.device};
    spec.engine.driver = policies::DriverKind::kProcess;
    spec.engine.command = {"what-if"};
    question.asked = {spec.name};
    question.documents.instances.push_back(std::move(spec));
    return question;
}

Result<WhatIf::Question> question_of(const PolicyBook& book, const std::string& file,
                                     const std::string& text) {
    const std::vector<policies::SourceText> texts{{file, text}};
    BERTH_ASSIGN(PolicyBook::Change change, book.prepare(texts));
    BERTH_ASSIGN(const policies::Documents update, policies::parse_together(texts));
    if (update.instances.empty())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: no Instance is in it: a plan is about one (what a policy "
                                "changes: `berth diff`)",
                                file),
                    "NothingAsked");
    WhatIf::Question question;
    question.documents = change.after->documents;
    for (const policies::InstanceSpec& one : update.instances) {
        question.asked.push_back(one.name);
        if (const auto* model = question.documents.find_model(one.model))
            question.set_bytes[model->path] = checkpoint_bytes(model->path);
    }
    return question;
}

json::object outcome_json(const WhatIf::Outcome& outcome) {
    json::array devices(outcome.devices.begin(), outcome.devices.end());
    return {{"name", outcome.instance},
            {"priorityClass", outcome.class_name},
            {"priority", outcome.priority},
            {"verdict", to_string(outcome.verdict)},
            {"devices", std::move(devices)},
            {"grantBytes", outcome.grant_bytes},
            {"afterMs", milliseconds(outcome.after)},
            {"reason", outcome.reason},
            {"message", outcome.message}};
}

json::object answer_json(const WhatIf::Answer& answer, policies::PolicyMode mode) {
    json::array outcomes, steps, decisions, under_way;
    for (const WhatIf::Outcome& one : answer.outcomes)
        outcomes.push_back(outcome_json(one));
    for (const WhatIf::Step& one : answer.steps)
        steps.push_back(json::object{{"action", one.action},
                                     {"object", one.object},
                                     {"device", one.device},
                                     {"bytes", one.bytes},
                                     {"why", one.why},
                                     {"afterMs", milliseconds(one.after)}});
    for (const node::Decision& one : answer.decisions)
        if (auto document = json::parse(to_record(one, "").document, "a decision"))
            decisions.push_back(*document);
    for (const std::string& one : answer.under_way)
        under_way.emplace_back(one);
    return {{"mode", policies::to_string(mode)},
            {"instances", std::move(outcomes)},
            {"steps", std::move(steps)},
            {"decisions", std::move(decisions)},
            {"underWay", std::move(under_way)}};
}

} // namespace

asio::awaitable<Response> AdminApi::plan(Request request) {
    const node::NodeState& state = parts_.context.state();
    if (!state.ready)
        co_return http::error_response(Error{
            ErrorCode::kUnavailable, "the node is still recovering; ask again", "NotReady", 0});
    request.peer.reset(); // it is not for another thread
    const std::string* type = request.headers.find("Content-Type");
    const bool is_need = type != nullptr && type->starts_with("application/json");
    const auto file = request.query.find("file");
    auto work = [copy = state, now = std::chrono::steady_clock::now(), book = parts_.policies,
                 is_need, name = file == request.query.end() ? "request" : file->second,
                 body = request.body]() -> Response {
        Result<WhatIf::Question> question = fail(ErrorCode::kInternal, "");
        if (!is_need)
            question = question_of(book, name, body);
        else if (auto need = bodies::read_need(body); !need)
            question = fail(need.error());
        else
            question = question_of(*need, copy);
        if (!question)
            return http::error_response(question.error());
        json::object shown = answer_json(WhatIf::play(copy, *question, now), copy.policy.mode);
        return http::json_response(shown);
    };
    co_return co_await run_on(parts_.context.io, parts_.actor.workers().questions, work);
}

} // namespace berth
