// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/explain.h"
#include "scheduler/cli/output.h"

#include <fmt/format.h>

namespace berth::cli {

namespace {

json::array list_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(field);
    return found != nullptr && found->is_array() ? found->get_array() : json::array();
}

std::string names_text(const json::array& names) {
    std::string text;
    for (const json::value& one : names)
        if (one.is_string())
            text += (text.empty() ? "" : ", ") + std::string(one.get_string());
    return text;
}

std::string outcome_text(const json::object& one) {
    std::string text = fmt::format("{} (class {}, priority {}) ", text_at(one, "name"),
                                   text_at(one, "priorityClass"), number_at(one, "priority"));
    const std::string verdict = text_at(one, "verdict");
    const std::string where = names_text(list_at(one, "devices"));
    const std::string why = text_at(one, "reason") + (text_at(one, "message").empty() ? "" : ": ") +
                            text_at(one, "message");
    if (verdict == "Waits")
        return text + "would wait: " + why + "\n";
    const std::string place =
        fmt::format("on {} with a grant of {}", where, format_bytes(number_at(one, "grantBytes")));
    if (verdict == "Unchanged")
        return text + "runs already, " + place + "; nothing would change for it\n";
    text += "would run " + place;
    if (const uint64_t after = number_at(one, "afterMs"); after > 0)
        text += fmt::format(", after a wait of {}", milliseconds_text(static_cast<double>(after))) +
                (why.empty() ? "" : " (" + why + ")");
    return text + "\n";
}

std::string step_text(size_t number, const json::object& step) {
    std::string text =
        fmt::format("  {:>2}. {:<8} {}", number, text_at(step, "action"), text_at(step, "object"));
    if (const uint64_t bytes = number_at(step, "bytes"); bytes > 0)
        text += ", " + format_bytes(bytes);
    if (!text_at(step, "device").empty())
        text += " on " + text_at(step, "device");
    if (!text_at(step, "why").empty() && text_at(step, "action") != "Start")
        text += ", " + text_at(step, "why");
    if (const uint64_t after = number_at(step, "afterMs"); after > 0)
        text += fmt::format(" (after {})", milliseconds_text(static_cast<double>(after)));
    return text + "\n";
}

} // namespace

std::string what_if_text(const json::object& answer, int64_t now_ms) {
    std::string text;
    bool waits = false;
    for (const json::value& one : list_at(answer, "instances"))
        if (one.is_object()) {
            text += outcome_text(one.get_object());
            waits = waits || text_at(one.get_object(), "verdict") == "Waits";
        }
    const json::array steps = list_at(answer, "steps");
    if (!steps.empty())
        text += waits ? "What would be done all the same, in this order:\n"
                      : "What would be done, in this order:\n";
    size_t number = 0;
    for (const json::value& one : steps)
        if (one.is_object())
            text += step_text(++number, one.get_object());
    if (const std::string now = names_text(list_at(answer, "underWay")); !now.empty())
        text += "Taken as done, since it is under way: " + now + "\n";
    if (const std::string mode = text_at(answer, "mode"); mode == "Observe" || mode == "Off")
        text += "The policy's mode is " + mode + ": nothing is preempted or dropped for anybody.\n";
    const json::array decisions = list_at(answer, "decisions");
    if (!decisions.empty())
        text += "\nWhat would be weighed\n";
    for (const json::value& one : decisions)
        if (one.is_object()) {
            json::object decision = one.get_object();
            decision.erase("id"); // it has not been made
            text += decision_text(decision, now_ms);
        }
    return text + "\nNothing was changed.\n";
}

} // namespace berth::cli
