// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/tables.h"

#include "base/units.h"
#include "scheduler/cli/admin_client.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>

namespace berth::cli {

namespace {

struct KindWords {
    Kind kind;
    std::string_view singular;
    std::string_view plural;
};
constexpr std::array kKinds = {
    KindWords{Kind::kInstances, "instance", "instances"},
    KindWords{Kind::kDevices, "device", "devices"},
    KindWords{Kind::kWeights, "weight", "weights"},
    KindWords{Kind::kOperations, "operation", "operations"},
    KindWords{Kind::kDecisions, "decision", "decisions"},
};

std::string bytes_at(const json::object& item, std::string_view field) {
    const auto* found = item.if_contains(field);
    return found == nullptr || found->is_null() ? "" : format_bytes(number_at(item, field));
}

std::string ms_at(const json::object& item, std::string_view field) {
    const auto* found = item.if_contains(field);
    return found == nullptr || !found->is_number() ? "" : milliseconds_text(real_at(item, field));
}

Table instances_table(const json::array& items) {
    Table table({"NAME", "CLASS", "STATE", "MODEL", "DEVICE", "GRANT", "DONE", "SINCE", "REASON"});
    for (const json::value& value : items) {
        const json::object& item = value.get_object();
        std::string done;
        if (const auto* counters = item.if_contains("counters");
            counters && counters->is_object()) {
            const json::object& counted = counters->get_object();
            uint64_t total = number_at(counted, "batchTotal");
            done = total > 0 ? fmt::format("{}/{}", number_at(counted, "batchDone"), total)
                             : fmt::format("{}", number_at(counted, "requestsDone"));
        }
        std::string state = text_at(item, "state");
        std::string why = text_at(item, "reason");
        if (flag_at(item, "onHold") && why != "OnHold")
            why = why.empty() ? "on hold" : why + ", on hold";
        if (!text_at(item, "substate").empty())
            why = why.empty() ? text_at(item, "substate") : text_at(item, "substate") + ", " + why;
        table.add({text_at(item, "name"), text_at(item, "priorityClass"), state,
                   text_at(item, "model"), text_at(item, "device"), bytes_at(item, "grantBytes"),
                   done, age_text(number_at(item, "sinceMs")), why});
    }
    return table;
}

std::string device_state(const json::object& item) {
    if (!flag_at(item, "cordoned"))
        return "in service";
    const std::string drain = text_at(item, "drainedBy");
    return (drain.empty() ? "cordoned" : "drained by " + drain) + ": " +
           text_at(item, "cordonReason");
}

Table devices_table(const json::array& items) {
    Table table({"ID", "KIND", "NAME", "TOTAL", "WEIGHTS", "GRANTS", "FREE", "RECLAIMABLE",
                 "DRIVER USED", "STATE"});
    for (const json::value& value : items) {
        const json::object& item = value.get_object();
        table.add({text_at(item, "id"), text_at(item, "kind"), text_at(item, "name"),
                   bytes_at(item, "totalBytes"), bytes_at(item, "weightBytes"),
                   bytes_at(item, "grantBytes"), bytes_at(item, "freeBytes"),
                   bytes_at(item, "reclaimableBytes"), bytes_at(item, "driverUsedBytes"),
                   device_state(item)});
    }
    return table;
}

// The tiers below the devices that have a copy.
std::string tiers_at(const json::object& item) {
    std::string text;
    const auto* places = item.if_contains("tiers");
    if (places == nullptr || !places->is_array())
        return text;
    for (const json::value& place : places->get_array())
        if (place.is_string() && (place == "host-tier" || place == "image"))
            text += (text.empty() ? "" : ",") + std::string(std::string_view(place.get_string()));
    return text;
}

Table weights_table(const json::array& items) {
    Table table({"ID", "MODEL", "STATE", "DEVICE", "SIZE", "TENSORS", "LEASES", "PINNED",
                 "LOADED IN", "FROM", "TIERS", "PATH"});
    for (const json::value& value : items) {
        const json::object& item = value.get_object();
        std::string state = text_at(item, "state");
        if (const auto* progress = item.if_contains("progress");
            progress && progress->is_object()) {
            const json::object& loading = progress->get_object();
            uint64_t total = number_at(loading, "bytesTotal");
            if (total > 0)
                state += fmt::format(" {}%", number_at(loading, "bytesDone") * 100 / total);
            if (double left = real_at(loading, "secondsLeft"); left > 0)
                state +=
                    fmt::format(" {}/s, {:.0f} s left", bytes_at(loading, "bytesPerSecond"), left);
        }
        table.add({text_at(item, "id"), text_at(item, "model"), state, text_at(item, "device"),
                   bytes_at(item, "bytes"), std::to_string(number_at(item, "tensors")),
                   std::to_string(number_at(item, "leases")),
                   flag_at(item, "pinned") ? "yes" : "no", ms_at(item, "loadedMs"),
                   text_at(item, "loadedFrom"), tiers_at(item), text_at(item, "path")});
    }
    return table;
}

Table operations_table(const json::array& items) {
    Table table({"ID", "KIND", "OBJECT", "MODE", "STATE", "TOOK", "FREED", "STARTED", "MESSAGE"});
    for (const json::value& value : items) {
        const json::object& item = value.get_object();
        uint64_t freed = number_at(item, "bytesFreed");
        std::string message = text_at(item, "message");
        if (const auto* error = item.if_contains("error"); error && error->is_object())
            message = text_at(error->get_object(), "reason") + ": " +
                      text_at(error->get_object(), "message");
        bool preempts = text_at(item, "kind") == "Preempt";
        std::string object = text_at(item, "object");
        table.add({text_at(item, "id"), text_at(item, "kind"),
                   object.empty() ? text_at(item, "instance") : object,
                   preempts ? text_at(item, "mode") : "", text_at(item, "state"), ms_at(item, "ms"),
                   freed > 0 ? format_bytes(freed) : "", text_at(item, "startedAt"), message});
    }
    return table;
}

Table decisions_table(const json::array& items) {
    Table table({"ID", "TIME", "KIND", "OBJECT", "WINNER", "OUTCOME", "CARRIED OUT"});
    for (const json::value& value : items) {
        const json::object& item = value.get_object();
        auto seconds = static_cast<std::time_t>(number_at(item, "timeMs") / 1000);
        table.add({text_at(item, "id"), fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds)),
                   text_at(item, "kind"), text_at(item, "object"), text_at(item, "winner"),
                   text_at(item, "outcome"), flag_at(item, "carriedOut") ? "yes" : "no"});
    }
    return table;
}

} // namespace

std::optional<Kind> kind_from(std::string_view word) {
    for (const KindWords& known : kKinds)
        if (word == known.singular || word == known.plural)
            return known.kind;
    return std::nullopt;
}

std::string_view path_of(Kind kind) {
    for (const KindWords& known : kKinds)
        if (known.kind == kind)
            return known.plural;
    return "instances";
}

Table table_of(Kind kind, const json::array& items) {
    switch (kind) {
    case Kind::kInstances:
        return instances_table(items);
    case Kind::kDevices:
        return devices_table(items);
    case Kind::kWeights:
        return weights_table(items);
    case Kind::kOperations:
        return operations_table(items);
    case Kind::kDecisions:
        return decisions_table(items);
    }
    return instances_table(items);
}

Table phases_table(const json::value& phases) {
    Table table({"PHASE", "TOOK"});
    if (const auto* listed = phases.if_array())
        for (const json::value& phase : *listed)
            table.add({text_at(phase.get_object(), "name"),
                       milliseconds_text(real_at(phase.get_object(), "ms"))});
    if (const auto* mapped = phases.if_object())
        for (const auto& [name, ms] : *mapped)
            table.add({std::string(name), milliseconds_text(ms.to_number<double>())});
    return table;
}

} // namespace berth::cli
