// SPDX-License-Identifier: Apache-2.0
// What scenarios say of pairs that answer one socket.
#include "tests/node/scenario_runner.h"
#include "tests/node/scenario_words.h"

namespace berth::node::test {

std::optional<std::string> Runner::when_service(const Words& words) {
    if (at(words, 1) == "promotes")
        return event(OperatorPromote{OperationId(words[0]), InstanceName(at(words, 2)), "test",
                                     has(words, "dry")});
    if (words[0] == "berthd" && at(words, 1) == "sleeps")
        return sleep(time_of(at(words, 2)));
    if (!is_instance(words[0]))
        return std::nullopt;
    const InstanceName name(words[0]);
    const Instance& i = state_.instances.at(name);
    if (at(words, 1) == "falls") { // silent [rank N]
        silent_.insert({name, static_cast<uint32_t>(std::stoul(word_after(words, "rank", "0")))});
        return "";
    }
    if (at(words, 1) == "speaks") { // again
        std::erase_if(silent_, [&](const auto& one) { return one.first == name; });
        return "";
    }
    if (at(words, 1) == "dies")
        return event(ProcessDying{name, i.process});
    if (at(words, 1) == "is") { // told to wait
        CommandDone early{name, commands_[name].command, {}, 0, 0, 0, 0, {}};
        early.error = Error{ErrorCode::kUnavailable, "the one before holds it", "JournalLocked", 0};
        return event(early);
    }
    if (at(words, 1) == "steps") { // for TIME
        EngineReport report;
        report.instance = name;
        report.counters.requests_running = 1;
        report.counters.step_ms = static_cast<uint64_t>(time_of(at(words, 3)).count() / 1'000'000);
        return event(report);
    }
    if (at(words, 1) == "returns") { // as GENERATION
        return event(SessionOpened{
            name, i.process, "engine", "", i.grant_bytes, EngineState::kReady, EngineHeld::kNothing,
            std::stoull(at(words, 3)), "of " + i.spec.model, canary_of(words)});
    }
    return std::nullopt;
}

std::optional<std::string> Runner::then_service(const Words& words) const {
    if (!is_instance(words[0]))
        return std::nullopt;
    const Instance& i = state_.instances.at(InstanceName(words[0]));
    const std::string is = (i.stands_by ? "stands by, after " : "answers as ") +
                           std::to_string(i.generation) + " (" + i.substate + ")";
    if (at(words, 1) == "answers") // as GENERATION
        return !i.stands_by && i.generation == std::stoull(at(words, 3)) ? "" : "it " + is;
    if (at(words, 1) == "stands") // by, and is shown so
        return i.stands_by &&
                       (i.state != InstanceState::kRunning || i.dying || i.substate == "Standby")
                   ? ""
                   : "it " + is;
    return std::nullopt;
}

} // namespace berth::node::test
