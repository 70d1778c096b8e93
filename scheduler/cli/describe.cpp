// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/command.h"

#include "base/http/http.h"
#include "base/units.h"
#include "scheduler/cli/lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

// `berth describe`: one object, everything known of it, in sections.
namespace berth::cli {

namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

void print_fields(const Fields& fields) {
    size_t width = 0;
    for (const auto& [name, shown] : fields)
        if (!shown.empty())
            width = std::max(width, name.size());
    for (const auto& [name, shown] : fields)
        if (!shown.empty())
            std::fputs(fmt::format("{:<{}}  {}\n", name + ":", width + 1, shown).c_str(), stdout);
}

void print_table(const Output& output, std::string_view title, const Table& table) {
    if (table.empty())
        return;
    std::fputs(fmt::format("\n{}\n{}", paint(title, Colour::kBold, output.colour),
                           table.render(output.colour))
                   .c_str(),
               stdout);
}

std::string milliseconds(double ms) {
    return format_duration(Nanoseconds(static_cast<int64_t>(ms * 1e6)));
}

// Phases as {name: ms} or [{name, ms}]. "total" is the whole and comes last.
Table phase_table(const json::value* phases) {
    std::vector<std::pair<std::string, double>> listed;
    if (phases != nullptr && phases->is_object()) {
        for (const auto& [name, ms] : phases->get_object())
            if (ms.is_number())
                listed.emplace_back(std::string(name), ms.to_number<double>());
    } else if (phases != nullptr && phases->is_array()) {
        for (const json::value& one : phases->get_array())
            listed.emplace_back(text(one, "name"), number(one, "ms"));
    }
    std::stable_partition(listed.begin(), listed.end(),
                          [](const auto& phase) { return phase.first != "total"; });
    Table table({"PHASE", "TIME"});
    for (const auto& [name, ms] : listed)
        table.add({name, Table::Cell::figure(milliseconds(ms))});
    return table;
}

// An object of plain values as rows.
Table field_table(const json::value* of, const char* name, const char* shown) {
    Table table({name, shown});
    if (of != nullptr && of->is_object())
        for (const auto& [key, value] : of->get_object())
            if (!value.is_object() && !value.is_array())
                table.add({std::string(key), text(*of, key)});
    return table;
}

std::string with_words(const std::string& state, const std::string& more) {
    return more.empty() ? state : state + " (" + more + ")";
}

std::string yes_or_no(bool is) {
    return is ? "yes" : "no";
}

void describe_instance(const Output& output, const json::value& one) {
    std::string grant = bytes(one, "grantBytes");
    if (!bytes(one, "grantBytesMax").empty())
        grant += " of at most " + bytes(one, "grantBytesMax");
    print_fields({
        {"Name", text(one, "name")},
        {"Model", text(one, "model")},
        {"Class", with_words(text(one, "priorityClass"), "priority " + text(one, "priority"))},
        {"State", with_words(text(one, "state"), text(one, "substate"))},
        {"Since", duration(one, "sinceMs")},
        {"Desired", text(one, "desired")},
        {"Held by", text(one, "heldBy")},
        {"Reason", text(one, "reason")},
        {"Message", text(one, "message")},
        {"Driver", text(one, "driver")},
        {"Device", text(one, "device")},
        {"Process", number(one, "pid") > 0 ? text(one, "pid") : std::string()},
        {"Endpoint", text(one, "endpoint")},
        {"Grant", with_words(grant, text(one, "grantState"))},
        {"Host memory", bytes(one, "hostBytes")},
        {"Weight set", text(one, "weightSet")},
        {"Progress", progress_of(one)},
        {"Restarts", text(one, "restarts")},
        {"Operation", text(one, "operation")},
        {"Log", text(one, "log")},
    });
    print_table(output, "Start-up", phase_table(field(one, "phases")));
    print_table(output, "Counters", field_table(field(one, "counters"), "COUNTER", "VALUE"));
}

void describe_device(const Output& output, const json::value& one) {
    print_fields({
        {"Device", text(one, "id")},
        {"Kind", text(one, "kind")},
        {"Name", text(one, "name")},
        {"Total", bytes(one, "totalBytes")},
        {"Reserve", bytes(one, "reserveBytes")},
        {"Used", bytes(one, "usedBytes")},
        {"Free", bytes(one, "freeBytes")},
        {"Reclaimable", bytes(one, "reclaimableBytes")},
        {"Driver's figure", bytes(one, "driverUsedBytes")},
    });
    Table owners({"KIND", "OWNER", "BYTES", "STATE", "RECLAIMABLE"});
    if (const json::value* listed = field(one, "owners"); listed && listed->is_array())
        for (const json::value& owner : listed->get_array())
            owners.add({text(owner, "kind"), text(owner, "name"),
                        Table::Cell::figure(bytes(owner, "bytes")), text(owner, "state"),
                        flag(owner, "reclaimable") ? "yes" : ""});
    print_table(output, "Owners", owners);
}

void describe_weights(const Output& output, const json::value& one) {
    std::string holders;
    if (const json::value* listed = field(one, "holders"); listed && listed->is_array())
        for (const json::value& holder : listed->get_array())
            holders += (holders.empty() ? "" : ", ") +
                       (holder.is_string() ? std::string(holder.get_string()) : "");
    print_fields({
        {"Weights", text(one, "id")},
        {"Fingerprint", text(one, "fingerprint")},
        {"Model", text(one, "model")},
        {"Path", text(one, "path")},
        {"Device", text(one, "device")},
        {"State", text(one, "state")},
        {"Bytes", bytes(one, "bytes")},
        {"Tensors", text(one, "tensors")},
        {"Pinned", yes_or_no(flag(one, "pinned"))},
        {"Leases", with_words(text(one, "leases"), holders)},
        {"Bytes read", bytes(one, "bytesRead")},
        {"Loaded in", duration(one, "loadedMs")},
        {"Loaded at", text(one, "loadedAt")},
    });
    if (const json::value* progress = field(one, "progress"))
        print_table(output, "Progress", field_table(progress, "FIELD", "VALUE"));
    print_table(output, "Load", phase_table(field(one, "phases")));
    const json::value* document = field(one, "fingerprintDocument");
    print_table(output, "Made for", field_table(document, "FIELD", "VALUE"));
    if (document != nullptr)
        print_table(output, "Environment",
                    field_table(field(*document, "environment"), "FIELD", "VALUE"));
}

void describe_operation(const Output& output, const json::value& one) {
    std::string error;
    if (const json::value* found = field(one, "error"))
        error = text(*found, "reason") + ": " + text(*found, "message");
    bool is_preempt = text(one, "kind") == "Preempt";
    print_fields({
        {"Operation", text(one, "id")},
        {"Kind", text(one, "kind")},
        {"Object", text(one, "object")},
        {"Instance", text(one, "instance")},
        {"Mode", is_preempt ? text(one, "mode") : ""},
        {"Reached", is_preempt ? text(one, "reached") : ""},
        {"State", with_words(text(one, "state"), flag(one, "dryRun") ? "dry run" : "")},
        {"Reason", text(one, "reason")},
        {"Message", text(one, "message")},
        {"Error", error},
        {"Bytes freed", bytes(one, "bytesFreed")},
        {"Started", text(one, "startedAt")},
        {"Ended", text(one, "endedAt")},
        {"Took", duration(one, "ms")},
    });
    print_table(output, "Phases", phase_table(field(one, "phases")));
}

} // namespace

Status describe(const Context& context, const std::string& kind, const std::string& name) {
    json::value one;
    if (kind == "weights") {
        BERTH_ASSIGN(one, find_weights(context.client, name));
    } else {
        BERTH_ASSIGN(one, context.client.get("/v1/" + kind + "/" + http::percent_encode(name)));
    }
    if (!context.output.is_table())
        context.output.print(one);
    else if (kind == "instances")
        describe_instance(context.output, one);
    else if (kind == "devices")
        describe_device(context.output, one);
    else if (kind == "weights")
        describe_weights(context.output, one);
    else
        describe_operation(context.output, one);
    return {};
}

} // namespace berth::cli
