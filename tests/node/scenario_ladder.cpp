// SPDX-License-Identifier: Apache-2.0
// What scenarios say of the ladder: Shrink, signals to plain processes, processes that do not end,
// records as a new berthd finds them.
#include "tests/node/scenario_runner.h"
#include "tests/node/scenario_words.h"

namespace berth::node::test {

namespace {

std::vector<DeviceId> devices_of(const std::string& text) {
    std::vector<DeviceId> devices;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        devices.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return devices;
}

HeldBy holder_of(const std::string& word) {
    return word == "Nobody" ? HeldBy::kNobody : held_by_from(word).value();
}

} // namespace

std::optional<std::string> Runner::when_ladder(const Words& words) {
    const std::string& what = at(words, 1);
    if (words[0] == "found")
        return when_found(words);
    if (what == "shrinks") {
        OperatorPreempt ask{OperationId(words[0]),
                            InstanceName(at(words, 2)),
                            policies::Rung::kShrink,
                            std::nullopt,
                            "test",
                            has(words, "dry")};
        if (has(words, "to"))
            ask.grant_bytes = size_of(word_after(words, "to", ""));
        return event(ask);
    }
    if (!is_instance(words[0]))
        return std::nullopt;
    const InstanceName name(words[0]);
    const ProcessRef process = state_.instances.at(name).process;
    if (what == "stands") // still
        return event(ProcessStopped{name, process});
    if (what == "runs") // again
        return event(ProcessContinued{name, process});
    if (what == "loses") // its first process, not its others
        return event(LeaderExited{name, process, "exit code 1", "pid 77 (worker)"});
    if (what == "waits") // in WORDS
        return event(ProcessInspected{name, process, at(words, 3)});
    if (what == "may") // not be killed
        return event(KillRefused{name, process, "the MPS server has refused"});
    if (what == "namesake") { // a later process with the same pid: exits | stands | driver SIZE
        const ProcessRef other{process.pid, process.start_ticks + 500};
        if (at(words, 2) == "exits")
            return event(ProcessExited{name, other, true, "exit 0", "log"});
        if (at(words, 2) == "stands")
            return event(ProcessStopped{name, other});
        return event(BytesConfirmed{name, size_of(at(words, 3)), other});
    }
    if (what == "answers") { // late, what was given up: [refusing REASON] [grant SIZE]
        const Instance& i = state_.instances.at(name);
        CommandDone done{name,
                         i.late_command.value_or(commands_[name].command),
                         std::nullopt,
                         size_of(word_after(words, "grant", "0")),
                         0,
                         0,
                         0,
                         {}};
        if (has(words, "refusing"))
            done.error =
                Error{ErrorCode::kInternal, "cannot", word_after(words, "refusing", ""), 0};
        return event(done);
    }
    return std::nullopt;
}

// found NAME STATE DESIRED HELD GRANT on D,D [next SIZE] [full SIZE] [shrunk BY] [from STATE]
// [dead] [ranks weights S,S]
std::string Runner::when_found(const Words& words) {
    InstanceRecovered record;
    record.name = InstanceName(words[1]);
    record.state = instance_state_from(words[2]).value();
    record.desired = desired_from(words[3]).value();
    record.held_by = holder_of(words[4]);
    record.grant_bytes = size_of(words[5]);
    record.devices = devices_of(word_after(words, "on", ""));
    record.grant_bytes_next = size_of(word_after(words, "next", "0"));
    record.grant_bytes_resume = size_of(word_after(words, "full", "0"));
    record.shrunk_by = holder_of(word_after(words, "shrunk", "Nobody"));
    if (has(words, "from"))
        record.came_from = instance_state_from(word_after(words, "from", "")).value();
    record.alive = !has(words, "dead");
    record.process = ProcessRef{next_pid_++, 1};
    record.token_sha256 = "hash";
    if (has(words, "ranks")) { // as many as its devices: [weights S,S]
        record.ranks = static_cast<uint32_t>(record.devices.size());
        for (const DeviceId& set : devices_of(word_after(words, "weights", "")))
            record.weights.emplace_back(set.value);
        for (uint32_t rank = 1; rank < record.ranks; ++rank)
            record.others.push_back({ProcessRef{next_pid_++, 1}, "hash"});
    }
    return event(record);
}

std::optional<std::string> Runner::then_ladder(const Words& words, const std::string& rest) const {
    const auto device = state_.devices.find(DeviceId(words[0]));
    if (device != state_.devices.end() && at(words, 1) == "cordoned") { // [TEXT in the reason]
        if (!device->second.cordoned)
            return "it is in service";
        const std::string text = words.size() > 2 ? rest.substr(rest.find("cordoned") + 9) : "";
        const std::string& why = device->second.cordon_reason;
        return why.find(text) != std::string::npos ? "" : "the reason is: " + why;
    }
    if (device != state_.devices.end() && at(words, 1) == "serves")
        return device->second.cordoned ? "it is cordoned: " + device->second.cordon_reason : "";
    if (!is_instance(words[0]))
        return std::nullopt;
    const Instance& i = state_.instances.at(InstanceName(words[0]));
    if (at(words, 1) == "message") {
        const std::string text = rest.substr(rest.find("message") + 8);
        return i.message.find(text) != std::string::npos ? "" : "it says: " + i.message;
    }
    if (at(words, 1) == "owed") // what a Shrink has taken, and whose it was: SIZE [BY]
        return (i.grant_bytes_resume > i.grant_bytes ? i.grant_bytes_resume - i.grant_bytes : 0) ==
                           size_of(at(words, 2)) &&
                       (words.size() < 4 || i.shrunk_by == holder_of(words[3]))
                   ? ""
                   : "full " + format_bytes_exact(i.grant_bytes_resume) + " by " +
                         std::string(to_string(i.shrunk_by));
    return std::nullopt;
}

} // namespace berth::node::test
