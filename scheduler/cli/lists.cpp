// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/lists.h"

#include "scheduler/cli/command.h"

#include "base/http/http.h"
#include "base/units.h"

#include <fmt/format.h>

namespace berth::cli {

namespace {

using Cell = Table::Cell;

Cell state_cell(const json::value& of) {
    std::string state = text(of, "state");
    Colour colour = state_colour(state);
    std::string substate = text(of, "substate");
    if (!substate.empty())
        state += "/" + substate;
    return {state, colour};
}

// What a load has done so far: "Read 41%".
std::string load_progress(const json::value& weights) {
    const json::value* progress = field(weights, "progress");
    if (progress == nullptr)
        return {};
    double total = number(*progress, "bytesTotal");
    double share = total > 0 ? number(*progress, "bytesDone") / total : 0;
    return fmt::format("{} {:.0f}%", text(*progress, "phase"), share * 100);
}

std::string ago(const json::value& of, std::string_view name) {
    const json::value* found = field(of, name);
    if (found == nullptr)
        return {};
    auto seconds = static_cast<int64_t>(number(of, name) / 1000);
    return seconds == 0 ? "0s" : format_duration_exact(std::chrono::seconds(seconds));
}

// "why" of the instance's state: the reason and its words.
std::string why(const json::value& of) {
    std::string reason = text(of, "reason");
    std::string message = text(of, "message");
    return reason.empty() || message.empty() ? reason + message : reason + ": " + message;
}

} // namespace

std::string progress_of(const json::value& instance) {
    const json::value* counters = field(instance, "counters");
    if (counters == nullptr)
        return {};
    if (number(*counters, "batchTotal") > 0)
        return fmt::format("{:.0f} of {:.0f}", number(*counters, "batchDone"),
                           number(*counters, "batchTotal"));
    double running = number(*counters, "requestsRunning");
    double waiting = number(*counters, "requestsWaiting");
    if (running + waiting > 0)
        return fmt::format("{:.0f} running, {:.0f} waiting", running, waiting);
    double done = number(*counters, "requestsDone");
    return done > 0 ? fmt::format("{:.0f} done", done) : std::string();
}

Table device_table(const json::array& devices) {
    Table table({"DEVICE", "KIND", "NAME", "TOTAL", "USED", "WEIGHTS", "GRANTS", "FREE",
                 "RECLAIMABLE", "DRIVER"});
    for (const json::value& one : devices)
        table.add({text(one, "id"), text(one, "kind"), text(one, "name"),
                   Cell::figure(bytes(one, "totalBytes")), Cell::figure(bytes(one, "usedBytes")),
                   Cell::figure(bytes(one, "weightBytes")), Cell::figure(bytes(one, "grantBytes")),
                   Cell::figure(bytes(one, "freeBytes")),
                   Cell::figure(bytes(one, "reclaimableBytes")),
                   Cell::figure(bytes(one, "driverUsedBytes"))});
    return table;
}

Table instance_table(const json::array& instances) {
    Table table({"INSTANCE", "MODEL", "CLASS", "STATE", "FOR", "DEVICE", "PID", "GRANT", "PROGRESS",
                 "ENDPOINT", "WHY"});
    for (const json::value& one : instances) {
        std::string pid = number(one, "pid") > 0 ? text(one, "pid") : std::string();
        table.add({text(one, "name"), text(one, "model"), text(one, "priorityClass"),
                   state_cell(one), Cell::figure(ago(one, "sinceMs")), text(one, "device"),
                   Cell::figure(pid), Cell::figure(bytes(one, "grantBytes")), progress_of(one),
                   text(one, "endpoint"), why(one)});
    }
    return table;
}

Table weights_table(const json::array& weights) {
    Table table({"WEIGHTS", "MODEL", "DEVICE", "STATE", "BYTES", "TENSORS", "LEASES", "PINNED",
                 "LOADED IN", "PROGRESS"});
    for (const json::value& one : weights) {
        std::string model = text(one, "model");
        table.add({text(one, "id"), model.empty() ? text(one, "path") : model, text(one, "device"),
                   state_cell(one), Cell::figure(bytes(one, "bytes")),
                   Cell::figure(text(one, "tensors")), Cell::figure(text(one, "leases")),
                   flag(one, "pinned") ? "yes" : "", Cell::figure(duration(one, "loadedMs")),
                   load_progress(one)});
    }
    return table;
}

Table operation_table(const json::array& operations) {
    Table table(
        {"OPERATION", "KIND", "OBJECT", "MODE", "STATE", "STARTED", "TOOK", "FREED", "MESSAGE"});
    for (const json::value& one : operations) {
        std::string object = text(one, "object");
        std::string message = text(one, "message");
        if (const json::value* error = field(one, "error"))
            message = text(*error, "reason") + ": " + text(*error, "message");
        bool is_preempt = text(one, "kind") == "Preempt";
        table.add(
            {text(one, "id"), text(one, "kind"), object.empty() ? text(one, "instance") : object,
             is_preempt ? text(one, "mode") : "", state_cell(one), text(one, "startedAt"),
             Cell::figure(duration(one, "ms")),
             Cell::figure(number(one, "bytesFreed") > 0 ? bytes(one, "bytesFreed") : ""), message});
    }
    return table;
}

Table decision_table(const json::array& decisions) {
    Table table({"DECISION", "KIND", "OBJECT", "WINNER", "CARRIED OUT", "OUTCOME"});
    for (const json::value& one : decisions)
        table.add({text(one, "id"), text(one, "kind"), text(one, "object"), text(one, "winner"),
                   flag(one, "carriedOut") ? "yes" : "no", text(one, "outcome")});
    return table;
}

Table table_of(const std::string& kind, const json::array& listed) {
    if (kind == "devices")
        return device_table(listed);
    if (kind == "instances")
        return instance_table(listed);
    if (kind == "weights")
        return weights_table(listed);
    if (kind == "operations")
        return operation_table(listed);
    return decision_table(listed);
}

namespace {

json::array list_field(const json::value& of, std::string_view name) {
    const json::value* found = field(of, name);
    return found != nullptr && found->is_array() ? found->get_array() : json::array();
}

void print_section(const Output& output, const Table& table, const char* when_empty) {
    std::string written =
        table.empty() ? std::string(when_empty) + "\n" : table.render(output.colour);
    std::fprintf(stdout, "\n%s", written.c_str());
}

} // namespace

Status show_status(const Context& context) {
    BERTH_ASSIGN(json::value node, context.client.get("/v1/node"));
    if (!context.output.is_table()) {
        context.output.print(node);
        return {};
    }
    std::string keeper = "no keeper";
    if (const json::value* found = field(node, "keeper"); found && number(*found, "pid") > 0)
        keeper =
            fmt::format("keeper pid {} holds {}", text(*found, "pid"), text(*found, "entries"));
    std::string head = fmt::format("node {}: berthd {}, pid {}, up {}, {} resident; {}\n",
                                   paint(text(node, "name"), Colour::kBold, context.output.colour),
                                   text(node, "version"), text(node, "pid"), ago(node, "uptimeMs"),
                                   bytes(node, "rssBytes"), keeper);
    std::fputs(head.c_str(), stdout);
    print_section(context.output, device_table(list_field(node, "devices")), "No devices.");
    print_section(context.output, weights_table(list_field(node, "weights")),
                  "No weights are resident.");
    print_section(context.output, instance_table(list_field(node, "instances")),
                  "No instances are defined: see 'berth apply --help'.");
    return {};
}

Status get(const Context& context, const std::string& kind, const std::string& name) {
    if (!name.empty()) {
        json::value one;
        if (kind == "weights") {
            BERTH_ASSIGN(one, find_weights(context.client, name));
        } else {
            BERTH_ASSIGN(one, context.client.get("/v1/" + kind + "/" + http::percent_encode(name)));
        }
        if (context.output.is_table())
            std::fputs(table_of(kind, {one}).render(context.output.colour).c_str(), stdout);
        else
            context.output.print(one);
        return {};
    }
    BERTH_ASSIGN(json::value listed, context.client.get("/v1/" + kind));
    if (!context.output.is_table())
        context.output.print(listed);
    else if (items(listed).empty())
        std::fprintf(stderr, "No %s.\n", kind.c_str());
    else
        std::fputs(table_of(kind, items(listed)).render(context.output.colour).c_str(), stdout);
    return {};
}

} // namespace berth::cli
