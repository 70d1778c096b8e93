// SPDX-License-Identifier: Apache-2.0
// The `then` lines of scenarios.
#include "tests/node/scenario_runner.h"
#include "tests/node/scenario_words.h"

namespace berth::node::test {

bool Runner::is_instance(const std::string& name) const {
    return state_.instances.contains(InstanceName(name));
}

int Runner::count(const std::string& action, size_t from, size_t* place) const {
    int found = 0;
    for (size_t i = from; i < actions_.size(); ++i) {
        if (describe(actions_[i]) != action)
            continue;
        if (found++ == 0 && place != nullptr)
            *place = i;
    }
    return found;
}

std::string Runner::then(const Words& words, const std::string& rest) {
    if (auto wrong = then_rollout(words, rest))
        return *wrong;
    if (auto wrong = then_service(words))
        return *wrong;
    if (auto wrong = then_asking(words))
        return *wrong;
    if (auto wrong = then_ladder(words, rest))
        return *wrong;
    if (auto wrong = then_planner(words, rest))
        return *wrong;
    if (words[0] == "action")
        return count(rest.substr(7)) > 0 ? "" : "it was not done";
    if (words[0] == "no")
        return count(rest.substr(10)) == 0 ? "" : "it was done";
    if (words[0] == "order") {
        const size_t bar = rest.find(" | ");
        size_t first = 0, second = 0;
        if (count(rest.substr(6, bar - 6), 0, &first) == 0)
            return "the first was not done";
        if (count(rest.substr(bar + 3), first + 1, &second) == 0)
            return "the second was not done after the first";
        return "";
    }
    if (words[0] == "decision")
        return then_decision(words);
    if (words[0] == "leases") { // of those that are on record apart
        const size_t found = state_.leases.size();
        return found == std::stoull(words[1]) ? "" : "there are " + std::to_string(found);
    }
    if (words[0] == "free") {
        const uint64_t free = usage(state_, DeviceId(words[1])).free_bytes;
        return free == size_of(words[2]) ? "" : "free are " + format_bytes_exact(free);
    }
    if (words[0] == "tier")
        return then_tier(words);
    if (at(words, 1) == "lies" || at(words, 1) == "came")
        return then_set(words);
    if (at(words, 1) == "says" && done_.contains(OperationId(words[0]))) {
        const std::string text = rest.substr(rest.find("says") + 5);
        const std::string& said = done_.at(OperationId(words[0])).message;
        return said.find(text) != std::string::npos ? "" : "it says: " + said;
    }
    if (is_instance(words[0]) || at(words, 1) == "gone")
        return then_instance(words);
    return then_operation(words);
}

std::string Runner::then_instance(const Words& words) {
    if (words[1] == "gone")
        return is_instance(words[0]) ? "it is still there" : "";
    const Instance& i = state_.instances.at(InstanceName(words[0]));
    if (words[1] == "is") {
        if (to_string(i.state) == words[2] && i.reason == at(words, 3))
            return "";
        return "it is " + std::string(to_string(i.state)) + " " + i.reason + " (" + i.message + ")";
    }
    if (words[1] == "grant") {
        const bool same = i.grant_bytes == size_of(words[2]) &&
                          (words.size() < 4 || to_string(i.grant_state) == words[3]);
        return same ? ""
                    : "it is " + format_bytes_exact(i.grant_bytes) + " " +
                          std::string(to_string(i.grant_state));
    }
    if (words[1] == "held") {
        const std::string by(i.held_by == HeldBy::kNobody ? "Nobody" : to_string(i.held_by));
        return by == at(words, 3) ? "" : "held by " + by;
    }
    return "unknown line";
}

std::string Runner::then_operation(const Words& words) {
    const OperationId id(words[0]);
    if (words[1] == "running")
        return state_.operations.contains(id) ? "" : "it is not under way";
    const auto found = done_.find(id);
    if (found == done_.end())
        return "it has not ended";
    const Operation& operation = found->second;
    const std::string reason = operation.error ? operation.error->reason : "";
    const std::string wanted = at(words, 2) == "freed" ? "" : at(words, 2);
    if (to_string(operation.state) != words[1] || reason != wanted)
        return "it " + std::string(to_string(operation.state)) + " " + reason + ": " +
               operation.message;
    const uint64_t freed = size_of(word_after(words, "freed", "0"));
    if (has(words, "freed") && operation.bytes_freed != freed)
        return "it freed " + format_bytes_exact(operation.bytes_freed);
    return "";
}

std::string Runner::then_decision(const Words& words) const {
    for (const Action& action : actions_) {
        const auto* decision = std::get_if<Decision>(&action);
        if (decision == nullptr || decision->object != words[1])
            continue;
        for (const Decision::Candidate& one : decision->candidates)
            if (one.name == words[3])
                return one.taken == (words[2] == "takes") ? "" : "it says: " + one.why;
    }
    return "there is no such decision";
}

} // namespace berth::node::test
