// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/explain.h"

#include "base/units.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace berth::cli {

namespace {

constexpr size_t kDecisionsShown = 2; // about it, and as many in which it was looked at
constexpr size_t kEventsShown = 5;

struct Hint {
    std::string_view reason;
    std::string_view words; // {name}, {device}, {log}
};

// What an operator can do about each reason.
constexpr std::array kHints = {
    Hint{"OnHold", "An operator put it on hold: `berth release {name}` lets it go."},
    Hint{"WaitingForReclaim",
         "The bytes are being freed; it starts once the driver confirms them."},
    Hint{"InsufficientMemory",
         "It starts by itself when that much is free. To make room: `berth preempt NAME --mode "
         "Offload`, `berth evict WEIGHTS`, or lower its resources.requests.memory."},
    Hint{"WaitingForDevice", "It comes back by itself when its device is quiet."},
    Hint{"DeviceUnavailable",
         "`berth uncordon DEVICE` takes a device into service again; or name others in its "
         "spec.devices."},
    Hint{"DeviceNotFound", "Correct its spec.devices, then `berth apply`."},
    Hint{"OutsideSchedule", "It comes back by itself when its window opens."},
    Hint{"QuotaExceeded", "It starts when its tenant gives memory back, or its maxDeviceMemory is "
                          "raised (`berth apply`)."},
    Hint{"PreemptExempt", "It starts by itself when that time is over."},
    Hint{"DisruptionBudgetExhausted",
         "It starts by itself when its victims may be disturbed again, or when memory comes free."},
    Hint{"BackOff", "It is started again by itself; why it failed is in its log: {log}"},
    Hint{"CrashLoop", "Find the cause in its log ({log}), then `berth resume {name}`."},
    Hint{"EngineDied", "Its log: {log}"},
    Hint{"StartTimedOut", "Its log: {log}. A longer engine.startDeadline gives it more time."},
    Hint{"CanaryMismatch",
         "It computes other answers than it should: `berth verify` its weights, look at its log "
         "({log}), then `berth resume {name}`."},
    Hint{"ProcessWontEnd",
         "Its bytes stay counted and its device takes nothing new until its process has ended (a "
         "hung driver mostly: reset the device, or reboot); `berth preempt {name} --mode Evict` "
         "sends SIGKILL again, then `berth uncordon {device}`."},
    Hint{"KillRefused", "End what the message names, then `berth preempt {name} --mode Evict`."},
    Hint{"ShortReclaim", "Its engine kept bytes that it had said to give back: look at its log: "
                         "{log}"},
};

std::string filled(std::string text, const json::object& instance) {
    const std::string device = text_at(instance, "device");
    const std::array<std::pair<std::string_view, std::string>, 3> values{{
        {"{name}", text_at(instance, "name")},
        {"{device}", device.empty() ? "DEVICE" : device},
        {"{log}", text_at(instance, "log")},
    }};
    for (const auto& [place, value] : values)
        for (size_t at = 0; (at = text.find(place, at)) != std::string::npos; at += value.size())
            text.replace(at, place.size(), value);
    return text;
}

// What a state itself says when its reason says nothing.
std::string hint_of(const json::object& instance) {
    const std::string state = text_at(instance, "state"), reason = text_at(instance, "reason");
    for (const Hint& hint : kHints)
        if (hint.reason == reason && state != "Running")
            return filled(std::string(hint.words), instance);
    const std::string by = text_at(instance, "heldBy");
    const bool parked = state == "Paused" || state == "Suspended" || state == "Evicted";
    if (parked && by == "Operator")
        return filled("An operator wanted it so: `berth resume {name}` lets it go on.", instance);
    if (parked)
        return "The planner took it down for others; it comes back by itself when there is room.";
    if (state == "Pending")
        return "It is looked at again with each change on the node.";
    if (state == "Loading")
        return "Its weights are being loaded: `berth get weights` shows how far.";
    if (state == "Starting")
        return filled("Its process has not said Ready yet. Its log: {log}", instance);
    if (state == "Preempting")
        return "It is on its way to " + text_at(instance, "desired") +
               "; each rung has a deadline.";
    if (state == "Resuming")
        return "It is on its way back; what it needs is reserved.";
    if (state == "Succeeded")
        return "All its work is done. A changed document starts it again.";
    if (state == "Failed")
        return filled("It was given up. Its log: {log}; `berth resume {name}` tries again.",
                      instance);
    return "";
}

// The last rollout: how far it is, or what has become of it.
std::string rollout_words(const json::object& rollout) {
    std::string text =
        fmt::format("\nrollout {}: {}", number_at(rollout, "number"), text_at(rollout, "phase"));
    if (flag_at(rollout, "paused"))
        text += " (paused)";
    for (const char* field : {"reason", "message"})
        if (const std::string words = text_at(rollout, field); !words.empty())
            text += ": " + words;
    return text;
}

std::string headline(const json::object& instance) {
    std::string text = text_at(instance, "name") + " is " + text_at(instance, "state");
    if (!text_at(instance, "substate").empty())
        text += " (" + text_at(instance, "substate") + ")";
    text += " since " + age_text(number_at(instance, "sinceMs"));
    std::string devices;
    if (const auto* listed = instance.if_contains("devices"); listed && listed->is_array())
        for (const json::value& one : listed->get_array())
            devices += (devices.empty() ? "" : ", ") + std::string(one.as_string());
    if (!devices.empty())
        text += ", on " + devices;
    if (const uint64_t grant = number_at(instance, "grantBytes"); grant > 0)
        text += " with a grant of " + format_bytes(grant);
    text += fmt::format("\nclass {}, priority {}", text_at(instance, "priorityClass"),
                        number_at(instance, "priority"));
    if (!text_at(instance, "heldBy").empty())
        text += text_at(instance, "heldBy") == "Operator" ? ", held by an operator"
                                                          : ", held by the planner";
    if (flag_at(instance, "onHold"))
        text += ", on hold";
    if (!text_at(instance, "operation").empty())
        text += ", operation " + text_at(instance, "operation") + " under way";
    if (const auto* rollout = instance.if_contains("rollout"); rollout && rollout->is_object())
        text += rollout_words(rollout->get_object());
    return text + "\n";
}

json::array list_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(field);
    return found != nullptr && found->is_array() ? found->get_array() : json::array();
}

// "  rejected  instance/chat    its class may not be preempted (512.0 MiB)"
std::string candidates_text(const json::object& decision) {
    std::string text;
    size_t widest = 0;
    const json::array candidates = list_at(decision, "candidates");
    for (const json::value& one : candidates)
        if (one.is_object())
            widest = std::max(widest, text_at(one.get_object(), "name").size());
    for (const bool taken : {true, false})
        for (const json::value& value : candidates) {
            if (!value.is_object() || flag_at(value.get_object(), "taken") != taken)
                continue;
            const json::object& one = value.get_object();
            const uint64_t bytes = number_at(one, "bytes");
            text += fmt::format("  {:<9} {:<{}}  {}{}\n", taken ? "taken" : "rejected",
                                text_at(one, "name"), widest, text_at(one, "why"),
                                bytes > 0 ? " (" + format_bytes(bytes) + ")" : "");
        }
    return text;
}

std::string inputs_text(const json::object& decision) {
    std::string text;
    for (const json::value& value : list_at(decision, "inputs"))
        if (const auto* one = value.if_object())
            text +=
                (text.empty() ? "" : ", ") + text_at(*one, "name") + " " + text_at(*one, "value");
    return text.empty() ? "" : "  weighed   " + text + "\n";
}

bool is_object(const json::object& decision, const std::string& object) {
    return text_at(decision, "object") == object;
}

// The newest of those that are (or are not) about the object itself, newest first.
std::vector<json::object> newest(const json::array& decisions, const std::string& object,
                                 bool about_it) {
    std::vector<json::object> found;
    for (auto one = decisions.rbegin(); one != decisions.rend(); ++one)
        if (one->is_object() && is_object(one->get_object(), object) == about_it &&
            found.size() < kDecisionsShown)
            found.push_back(one->get_object());
    return found;
}

} // namespace

std::string decision_text(const json::object& decision, int64_t now_ms) {
    const auto time_ms = static_cast<int64_t>(number_at(decision, "timeMs"));
    std::string text = text_at(decision, "kind") + " for " + text_at(decision, "object");
    if (const std::string id = text_at(decision, "id"); !id.empty())
        text += fmt::format(
            ", {} ({} ago, {})", utc_text(static_cast<uint64_t>(time_ms / 1000)) + "Z",
            age_text(static_cast<uint64_t>(std::max<int64_t>(now_ms - time_ms, 0))), id);
    text += "\n" + inputs_text(decision) + candidates_text(decision);
    if (!text_at(decision, "winner").empty())
        text += "  winner    " + text_at(decision, "winner") + "\n";
    text += "  outcome   " + text_at(decision, "outcome") + "\n";
    if (!flag_at(decision, "carriedOut") && !text_at(decision, "winner").empty())
        text += "  nothing of it was done\n";
    return text;
}

std::string explanation(const json::object& instance, const json::array& decisions,
                        const json::array& events, int64_t now_ms) {
    std::string text = headline(instance);
    const std::string object = "instance/" + text_at(instance, "name");
    const std::string reason = text_at(instance, "reason"), message = text_at(instance, "message");
    if (!reason.empty() || !message.empty())
        text +=
            "why:  " + reason + (reason.empty() || message.empty() ? "" : ": ") + message + "\n";
    if (const std::string hint = hint_of(instance); !hint.empty())
        text += "then: " + hint + "\n";
    const auto own = newest(decisions, object, true), others = newest(decisions, object, false);
    for (const json::object& decision : own)
        text += "\n" + decision_text(decision, now_ms);
    if (own.empty())
        text += "\nNo decision about it is kept (they are of late only): what is said above is its "
                "state.\n";
    for (const json::object& decision : others)
        text += "\nIt was looked at for others: " + decision_text(decision, now_ms);
    std::vector<json::object> last;
    for (auto one = events.rbegin(); one != events.rend() && last.size() < kEventsShown; ++one)
        if (one->is_object() && is_object(one->get_object(), object))
            last.push_back(one->get_object());
    if (!last.empty())
        text += "\nLast events\n";
    for (auto one = last.rbegin(); one != last.rend(); ++one)
        text += fmt::format("  {}  {:<18}  {}\n", text_at(*one, "time"), text_at(*one, "reason"),
                            text_at(*one, "message"));
    return text;
}

} // namespace berth::cli
