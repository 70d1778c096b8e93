// SPDX-License-Identifier: Apache-2.0
// explain and plan: what berthd knows, in words.
#include "base/unique_fd.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/explain.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <iterator>

namespace berth::cli {

namespace {

constexpr uint64_t kEventsLooked = 2'000;
constexpr size_t kFileBytesMax = size_t{1} << 20;

int64_t wall_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

void print_value(Format format, const json::value& value) {
    print(format == Format::kJson ? pretty_json(value) : yaml_text(value));
}

// The events of late about an object; none when they cannot be read.
json::array events_about(const AdminClient& client, const std::string& object) {
    json::array events;
    uint64_t first = 0;
    if (auto node = client.get("/v1/node"); node && node->is_object())
        if (const uint64_t newest = number_at(node->get_object(), "revision");
            newest > kEventsLooked)
            first = newest - kEventsLooked;
    (void)client.lines(fmt::format("/v1/events?since={}", first), [&](std::string_view line) {
        auto event = line.empty() ? json::value() : json::parse(line, "an event").value_or(nullptr);
        if (event.is_object() && text_at(event.get_object(), "object") == object)
            events.push_back(std::move(event));
        return true;
    });
    return events;
}

Status explain_decision(const Session& session, const std::string& id) {
    BERTH_ASSIGN(const json::value reply,
                 session.client.get("/v1/decisions/" + http::percent_encode(id)));
    if (session.format != Format::kTable || !reply.is_object())
        print_value(session.format, reply);
    else
        print(decision_text(reply.get_object(), wall_ms()));
    return {};
}

} // namespace

Status explain(const Session& session, const std::string& given) {
    constexpr std::string_view kInstance = "instance/";
    const std::string name = given.starts_with(kInstance) ? given.substr(kInstance.size()) : given;
    auto instance = session.client.get("/v1/instances/" + http::percent_encode(name));
    if (!instance && instance.error().code == ErrorCode::kNotFound) {
        auto as_decision = explain_decision(session, name);
        if (!as_decision && as_decision.error().code == ErrorCode::kNotFound)
            return fail(ErrorCode::kNotFound,
                        fmt::format("'{}' is no instance and no decision of late; see `berth get "
                                    "instances`, `berth get decisions`",
                                    name),
                        "NotFound");
        return as_decision;
    }
    if (!instance)
        return fail(instance.error());
    if (!instance->is_object())
        return fail(ErrorCode::kCorrupt, "berthd's reply about an instance is no object");
    const std::string object = std::string(kInstance) + name;
    BERTH_ASSIGN(const json::value reply,
                 session.client.get("/v1/decisions?about=" + http::percent_encode(object)));
    BERTH_ASSIGN(const json::array decisions, items_of(reply));
    const json::array events = events_about(session.client, object);
    if (session.format == Format::kTable)
        print(explanation(instance->get_object(), decisions, events, wall_ms()));
    else
        print_value(
            session.format,
            json::object{{"instance", *instance}, {"decisions", decisions}, {"events", events}});
    return {};
}

Status plan(const Session& session, const WhatIfOptions& options) {
    json::object body;
    std::string text, target = "/v1/plan";
    http::Headers headers;
    if (options.files.empty()) {
        body["memory"] = options.memory;
        if (!options.class_name.empty())
            body["class"] = options.class_name;
        if (!options.device.empty())
            body["device"] = options.device;
        text = json::serialize(body);
        headers.set("Content-Type", "application/json");
    } else {
        if (options.files.size() != 1)
            return fail(ErrorCode::kInvalidArgument,
                        "one file at a time; several documents may be in it");
        const std::string& file = options.files.front();
        if (file == "-") {
            text.assign(std::istreambuf_iterator<char>(std::cin), {});
        } else {
            BERTH_ASSIGN(text, read_file(file, kFileBytesMax));
            target += "?file=" + http::percent_encode(std::filesystem::absolute(file).string());
        }
        headers.set("Content-Type", "application/yaml");
    }
    BERTH_ASSIGN(const http::Response reply,
                 session.client.exchange("POST", target, text, headers));
    BERTH_ASSIGN(const json::value answer, http::json_from(reply));
    if (session.format != Format::kTable || !answer.is_object())
        print_value(session.format, answer);
    else
        print(what_if_text(answer.get_object(), wall_ms()));
    return {};
}

} // namespace berth::cli
