// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/yaml.h"
#include "scheduler/node/reducer.h"

#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

// Runs scenarios written as lines of text, for an operator's eyes. One scenario is a name and
// lines:
//
//     given device D host|cuda SIZE           given documents FILE
//     given set ID PATH D SIZE                given all running
//     when applied [FILE]                     when load planned|sealed SIZE, failed R, exited,
//     refused when NAME started | ready | connects [ready] [held H] [grant SIZE] | disconnects when
//     NAME exits HOW | cannot start      when NAME says Succeeded|Failed when NAME done [grant S]
//     [host S]       when NAME refuses REASON when NAME driver SIZE|unknown           when OP
//     preempts NAME MODE [grace D] [dry] when OP resumes NAME [dry]              when OP loads
//     MODEL | evicts|pins|unpins SET when dropped SET D                      when guest N
//     takes|leaves SET D when recovered NAME STATE DESIRED HELD GRANT alive|dead|unseen when
//     operation OP preempt|resume NAME MODE recovered when time passes D                      when
//     shutdown then NAME is STATE [REASON]             then NAME grant SIZE [GRANTSTATE] then NAME
//     gone                          then free D SIZE then OP Succeeded|Failed|running [REASON]
//     [freed SIZE] then action TEXT                        then no action TEXT then order TEXT |
//     TEXT                  then decision OBJECT rejects|takes NAME
//
// Of tiers (scenario_tiers.cpp):
//
// - given copy ID PATH TIER SIZE of DEVICE
// - when copy planned|sealed [SIZE], written, failed R, exited
// - when OP loads MODEL on DEVICE
// - when OP evicts SET drop
// - when the first load exits|planned ...|sealed ...
// - when load unavailable R, when copy full
// - when stuck SET PLACE [by WHY]
// - when operation OP drop SET recovered
// - when SET changed at PATH
// - then SET lies in PLACES|nothing
// - then SET came from TIER|checkpoint
// - then tier TIER has SIZE [and SIZE coming]
// - then OP says TEXT
//
// Of the ladder (scenario_ladder.cpp):
//
// - when OP shrinks NAME [to SIZE] [dry]
// - when NAME stands still | runs again | loses its first process
// - when NAME waits in WORD | may not be killed
// - when NAME namesake exits | stands | driver SIZE (a later process with the same pid)
// - when NAME answers [refusing REASON] [grant SIZE] (what was given up)
// - when found NAME STATE DESIRED HELD GRANT on D,D [next S] [full S] [shrunk BY] [from STATE]
// [dead]
// - then D cordoned [TEXT] | serves
// - then NAME message TEXT | owed SIZE [BY]
//
// Of what operators ask (scenario_asking.cpp):
//
// - when OP holds|releases NAME [dry]
// - when OP drains NAME [timeout D] [dry]
// - when OP cordons|uncordons D [dry], when OP empties D [timeout D] [dry]
// - when drain OP of NAME|D found (on record, after a restart)
// - when found cordon D
// - then NAME on D | nowhere
//
// Of pairs that answer one socket (scenario_service.cpp):
//
// - when NAME dies (its end has begun), when NAME steps for TIME, when NAME returns as GENERATION
// - when NAME falls silent [rank N], speaks again; when berthd sleeps TIME
// - when NAME is told to wait (its Serve comes too early)
// - when OP promotes NAME [dry]
// - when recovered ... [generation N | standby N]
// - then NAME answers as GENERATION | stands by
//
// Of rollouts: scenario_rollout.cpp.
//
// "action" looks at what has been done since the last `when`. The invariants are checked after each
// event. Fires timers in order as time passes.
namespace berth::node::test {

struct Scenario {
    std::string name;
    std::string where; // file:line
    std::vector<std::pair<int, std::string>> lines;
};
std::vector<Scenario> read_scenarios(const std::string& folder);

class Runner {
  public:
    explicit Runner(std::string folder) : folder_(std::move(folder)) {}
    // "" or what went wrong, with the line.
    std::string run(const Scenario& scenario);

  private:
    using Words = std::vector<std::string>;
    std::string line(const std::string& text);
    std::string given(const Words& words);
    std::string when(const Words& words);
    // scenario_planner.cpp
    std::optional<std::string> given_planner(const Words& words);
    std::optional<std::string> when_planner(const Words& words);
    std::optional<std::string> then_planner(const Words& words, const std::string& rest);
    Result<policies::Documents> described() const;
    std::string apply_described();
    std::string when_load(LoadId load, const Words& words);
    std::optional<std::string> when_ladder(const Words& words);
    std::string when_found(const Words& words);
    std::optional<std::string> then_ladder(const Words& words, const std::string& rest) const;
    std::optional<std::string> when_asking(const Words& words);
    std::optional<std::string> then_asking(const Words& words) const;
    std::optional<std::string> when_service(const Words& words);
    std::optional<std::string> then_service(const Words& words) const;
    std::optional<std::string> when_rollout(const Words& words);
    std::optional<std::string> then_rollout(const Words& words, const std::string& rest) const;
    std::string keep_document(const std::string& name);
    std::string restart();
    std::string given_copy(const Words& words);
    std::string when_copy(const Words& words);
    std::string when_changed(const Words& words);
    std::string then_tier(const Words& words) const;
    std::string then_set(const Words& words) const;
    std::string when_operation(const Words& words);
    std::string when_instance(const Words& words);
    std::string when_recovered(const Words& words);
    std::string then(const Words& words, const std::string& rest);
    std::string then_instance(const Words& words);
    std::string then_operation(const Words& words);
    std::string then_decision(const Words& words) const;
    std::string event(const Event& event);
    std::string pass(Nanoseconds time);
    std::string sleep(Nanoseconds time); // berthd does, for so long
    std::string let_speak(TimerId id);
    std::string drive(); // plays engines and loaders until nothing is left to do
    std::string documents(const std::string& file);
    int count(const std::string& action, size_t from = 0, size_t* at = nullptr) const;
    bool is_instance(const std::string& name) const;

    std::string folder_;
    NodeState state_;
    TimePoint now_{std::chrono::hours(1)};
    std::vector<Action> actions_; // since the last `when`
    std::map<TimerId, TimePoint> timers_;
    std::map<OperationId, Operation> done_;
    policies::Documents documents_;                      // as they were applied last
    Rollouts recorded_;                                  // as they were written down last
    std::map<InstanceName, SendCommand> commands_;       // the last one to each
    std::set<std::pair<InstanceName, uint32_t>> silent_; // ranks that say nothing
    LoadId load_{}, earlier_load_{};
    StartCopy copy_;    // the last one
    size_t driven_ = 0; // of actions_: what drive() has played
    int next_pid_ = 100;
    // Documents that are described line by line, by name.
    std::map<std::string, std::string> classes_, policy_, models_, described_;
};

} // namespace berth::node::test
