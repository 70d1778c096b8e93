// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/tables.h"

#include <fmt/format.h>

#include <deque>
#include <unistd.h>

namespace berth::cli {

namespace {

constexpr size_t kEventsDescribed = 10;

void print_value(Format format, const json::value& value) {
    print(format == Format::kJson ? pretty_json(value) : yaml_text(value));
}

Result<Kind> kind_named(const std::string& word) {
    if (auto kind = kind_from(word))
        return *kind;
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is no kind of thing", word));
}

Result<json::value> one_item(const Session& session, Kind kind, std::string name) {
    if (kind == Kind::kWeights) {
        BERTH_ASSIGN(name, weight_set_id(session.client, name));
    }
    return session.client.get(fmt::format("/v1/{}/{}", path_of(kind), http::percent_encode(name)));
}

void print_section(const char* title, const Table& table) {
    print(fmt::format("\n{}\n", title));
    print(table.empty() ? "none\n" : table.text(may_colour(STDOUT_FILENO)));
}

json::array array_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(field);
    return found != nullptr && found->is_array() ? found->get_array() : json::array();
}

// The newest events about an object; none when they cannot be read.
Table events_of(const AdminClient& client, const std::string& object) {
    std::deque<json::object> newest;
    (void)client.lines("/v1/events?since=0", [&](std::string_view line) {
        auto event = line.empty() ? json::value() : json::parse(line, "an event").value_or(nullptr);
        if (event.is_object() && text_at(event.get_object(), "object") == object) {
            newest.push_back(event.get_object());
            if (newest.size() > kEventsDescribed)
                newest.pop_front();
        }
        return true;
    });
    Table table({"TIME", "KIND", "REASON", "MESSAGE"});
    for (const json::object& event : newest)
        table.add({text_at(event, "time"), text_at(event, "kind"), text_at(event, "reason"),
                   text_at(event, "message")});
    return table;
}

} // namespace

Status show_status(const Session& session) {
    BERTH_ASSIGN(json::value reply, session.client.get("/v1/node"));
    if (session.format != Format::kTable || !reply.is_object()) {
        print_value(session.format, reply);
        return {};
    }
    const json::object& node = reply.get_object();
    json::object keeper;
    if (const auto* found = node.if_contains("keeper"); found != nullptr && found->is_object())
        keeper = found->get_object();
    print(fmt::format(
        "node {}: berthd {} {}, pid {}, up {}, {} resident, recovered in {}\n"
        "keeper: {}, {} entries, {} restarts; engines connected: {}\n",
        text_at(node, "name"), text_at(node, "version"),
        flag_at(node, "ready") ? "ready" : "not ready", number_at(node, "pid"),
        age_text(number_at(node, "uptimeMs")), format_bytes(number_at(node, "rssBytes")),
        milliseconds_text(real_at(node, "recoverMs")),
        text_at(keeper, "kind") == "systemd" ? std::string("systemd")
                                             : fmt::format("pid {}", number_at(keeper, "pid")),
        number_at(keeper, "entries"), number_at(keeper, "restarts"), number_at(node, "sessions")));
    if (const auto* found = node.if_contains("database"); found != nullptr && found->is_object())
        if (const json::object& database = found->get_object(); !flag_at(database, "writable"))
            print(fmt::format("DATABASE {} for {}: {}\n", text_at(database, "reason"),
                              age_text(number_at(database, "sinceMs")),
                              text_at(database, "message")));
    print_section("DEVICES", table_of(Kind::kDevices, array_at(node, "devices")));
    print_section("WEIGHTS", table_of(Kind::kWeights, array_at(node, "weights")));
    Table tiers({"TIER", "LIMIT", "USED", "COPIES", "FOLDER"});
    for (const json::value& value : array_at(node, "tiers")) {
        const json::object& tier = value.get_object();
        if (number_at(tier, "limitBytes") > 0)
            tiers.add({text_at(tier, "name"), format_bytes(number_at(tier, "limitBytes")),
                       format_bytes(number_at(tier, "usedBytes")),
                       std::to_string(number_at(tier, "copies")), text_at(tier, "folder")});
    }
    if (!tiers.empty())
        print_section("TIERS", tiers);
    print_section("INSTANCES", table_of(Kind::kInstances, array_at(node, "instances")));
    return {};
}

Status get(const Session& session, const std::string& kind_word, const std::string& name) {
    BERTH_ASSIGN(Kind kind, kind_named(kind_word));
    json::array items;
    json::value reply;
    if (name.empty()) {
        BERTH_ASSIGN(reply, session.client.get(fmt::format("/v1/{}", path_of(kind))));
        BERTH_ASSIGN(items, items_of(reply));
    } else {
        BERTH_ASSIGN(reply, one_item(session, kind, name));
        items.push_back(reply);
    }
    if (session.format != Format::kTable)
        print_value(session.format, reply);
    else if (items.empty())
        print_error(fmt::format("no {}\n", path_of(kind)));
    else
        print(table_of(kind, items).text(may_colour(STDOUT_FILENO)));
    return {};
}

Status describe(const Session& session, const std::string& kind_word, const std::string& name) {
    BERTH_ASSIGN(Kind kind, kind_named(kind_word));
    BERTH_ASSIGN(json::value reply, one_item(session, kind, name));
    if (session.format != Format::kTable || !reply.is_object()) {
        print_value(session.format, reply);
        return {};
    }
    json::object object = reply.get_object();
    json::value phases;
    if (const auto* found = object.if_contains("phases"))
        phases = *found;
    json::array owners = array_at(object, "owners");
    object.erase("phases");
    object.erase("owners");
    print(described(object));
    if (Table table = phases_table(phases); !table.empty())
        print_section(kind == Kind::kOperations ? "PHASES" : "START-UP PHASES", table);
    if (!owners.empty()) {
        Table table({"KIND", "OWNER", "BYTES", "STATE", "RECLAIMABLE"});
        for (const json::value& value : owners) {
            const json::object& owner = value.get_object();
            table.add({text_at(owner, "kind"), text_at(owner, "name"),
                       format_bytes(number_at(owner, "bytes")), text_at(owner, "state"),
                       flag_at(owner, "reclaimable") ? "yes" : "no"});
        }
        print_section("OWNERS", table);
    }
    std::string prefix = kind == Kind::kInstances ? "instance/"
                         : kind == Kind::kWeights ? "weights/"
                         : kind == Kind::kDevices ? "device/"
                                                  : "";
    std::string key = text_at(object, kind == Kind::kInstances ? "name" : "id");
    if (prefix.empty())
        return {};
    if (Table table = events_of(session.client, prefix + key); !table.empty())
        print_section("EVENTS", table);
    return {};
}

Status doctor(const Session& session) {
    BERTH_ASSIGN(json::value reply, session.client.get("/v1/doctor"));
    if (!reply.is_object())
        return fail(ErrorCode::kCorrupt, "berthd's reply to the doctor is no object");
    size_t failed = 0;
    Table table({"CHECK", "RESULT", "FOUND", "REMEDY"});
    for (const json::value& value : array_at(reply.get_object(), "checks")) {
        const json::object& check = value.get_object();
        failed += flag_at(check, "ok") ? 0 : 1;
        table.add({text_at(check, "name"), flag_at(check, "ok") ? "ok" : "FAIL",
                   text_at(check, "message"), text_at(check, "remedy")});
    }
    if (session.format == Format::kTable)
        print(table.text(may_colour(STDOUT_FILENO)));
    else
        print_value(session.format, reply);
    if (failed > 0)
        return fail(ErrorCode::kFailedPrecondition, fmt::format("{} checks failed", failed),
                    "NotWell");
    return {};
}

} // namespace berth::cli
