// SPDX-License-Identifier: Apache-2.0
// What scenarios say of rollouts:
//
// - when OP rollout NAME FILE|described [paused] [in place] [may stop] [dry] (described: as it was
//   given last, not applied)
// - when OP pauses|undoes rollout NAME [in place] [dry], when OP goes on with rollout NAME
// - when documents keep NAME (what its rollout has come to), when documents refuse NAME
// - when berthd restarts (what is on record is found again; engines are not back yet)
// - then rollout NAME is PHASE [REASON], then rollout NAME says TEXT
// - then NAME runs WORD (as its document's command ends), then NAME is wanted as WORD
#include "scheduler/node/durable.h"
#include "tests/node/scenario_runner.h"
#include "tests/node/scenario_words.h"

namespace berth::node::test {

namespace {

using Verb = OperatorRollout::Verb;

std::string last_word(const policies::InstanceSpec& spec) {
    return spec.engine.command.back();
}

} // namespace

std::optional<std::string> Runner::when_rollout(const Words& words) {
    OperatorRollout ask;
    ask.operation = OperationId(words[0]);
    ask.dry_run = has(words, "dry");
    ask.in_place = word_after(words, "in", "") == "place";
    ask.may_stop = word_after(words, "may", "") == "stop";
    if (at(words, 1) == "rollout") {
        const auto read = at(words, 3) == "described"
                              ? described()
                              : policies::load_paths({folder_ + "/" + at(words, 3)});
        if (!read)
            return read.error().message;
        ask.instance = InstanceName(words[2]);
        ask.pause = has(words, "paused");
        const policies::InstanceSpec* spec =
            read->find_instance(words[2].substr(0, words[2].find('~')));
        if (spec == nullptr)
            return "no such instance there";
        ask.spec = *spec;
        return event(ask);
    }
    if (at(words, 2) == "rollout" && (words[1] == "pauses" || words[1] == "undoes")) {
        ask.verb = words[1] == "pauses" ? Verb::kPause : Verb::kUndo;
        ask.instance = InstanceName(at(words, 3));
        return event(ask);
    }
    if (at(words, 1) == "goes" && at(words, 4) == "rollout") { // on with
        ask.verb = Verb::kResume;
        ask.instance = InstanceName(at(words, 5));
        return event(ask);
    }
    if (words[0] == "documents" && at(words, 1) == "keep")
        return keep_document(at(words, 2));
    if (words[0] == "documents" && at(words, 1) == "refuse")
        return event(DocumentRefused{InstanceName(at(words, 2)),
                                     Error{ErrorCode::kIo, "the disk is full", "DiskFull", 0}});
    if (words[0] == "berthd" && at(words, 1) == "restarts")
        return restart();
    return std::nullopt;
}

std::string Runner::keep_document(const std::string& name) {
    for (const Action& action : actions_)
        if (const auto* adopt = std::get_if<AdoptDocument>(&action);
            adopt != nullptr && adopt->spec.name == name) {
            for (policies::InstanceSpec& one : documents_.instances)
                if (one.name == name)
                    one = adopt->spec;
            actions_.clear();
            for (policies::InstanceSpec& one : documents_.instances)
                if (one.standby_of == name)
                    one = policies::standby_for(one, *documents_.find_instance(name));
            return event(DocumentsApplied{documents_});
        }
    return "it was not asked for";
}

// What was written down, and nothing else, is known to the next one.
std::string Runner::restart() {
    const NodeState before = std::move(state_);
    state_ = NodeState();
    timers_.clear();
    actions_.clear();
    driven_ = 0;
    std::string wrong;
    for (const auto& [id, device] : before.devices)
        wrong += event(DeviceSeen{id, device.kind, device.name, device.total_bytes});
    for (const auto& [key, set] : before.weights)
        wrong += event(durable(set));
    for (const auto& [name, i] : before.instances) {
        InstanceRecovered record = durable(i);
        record.alive = i.process_alive;
        wrong += event(record);
    }
    for (const auto& [name, rollout] : recorded_)
        wrong += event(RolloutRecovered{rollout});
    return wrong + event(DocumentsApplied{documents_});
}

std::optional<std::string> Runner::then_rollout(const Words& words, const std::string& rest) const {
    if (words[0] == "rollout") {
        const auto found = state_.rollouts.find(InstanceName(at(words, 1)));
        if (found == state_.rollouts.end())
            return at(words, 2) == "gone" ? "" : "there is none";
        const Rollout& r = found->second;
        const std::string is = std::string(to_string(r.phase)) +
                               (r.reason.empty() ? "" : " " + r.reason) + ": " + r.message;
        if (at(words, 2) == "says")
            return r.message.find(rest.substr(rest.find("says") + 5)) != std::string::npos
                       ? ""
                       : "it is " + is;
        return at(words, 2) == "is" && at(words, 3) == to_string(r.phase) &&
                       (words.size() < 5 || words[4] == r.reason)
                   ? ""
                   : "it is " + is;
    }
    if (at(words, 1) != "runs" && at(words, 2) != "wanted")
        return std::nullopt;
    if (!is_instance(words[0]))
        return "there is no such instance";
    const Instance& i = state_.instances.at(InstanceName(words[0]));
    const std::string word = words.back();
    if (at(words, 2) == "wanted")
        return last_word(i.spec) == word ? "" : "it is wanted as " + last_word(i.spec);
    return i.process_alive && !i.restart_wanted && last_word(i.spec) == word
               ? ""
               : "its process is another, or there is none";
}

} // namespace berth::node::test
