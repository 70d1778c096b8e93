// SPDX-License-Identifier: Apache-2.0
#include "tests/node/scenario_runner.h"
#include "scheduler/node/durable.h"
#include "scheduler/node/tiers.h"
#include "tests/node/scenario_words.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace berth::node::test {

namespace {

constexpr uint64_t kModelBytes = 1ULL << 30; // of the sets that drive() loads

} // namespace

std::vector<Scenario> read_scenarios(const std::string& folder) {
    std::vector<Scenario> all;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".txt")
            files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
        std::ifstream in(file);
        int number = 0;
        for (std::string text; std::getline(in, text);) {
            ++number;
            if (text.empty() || text.front() == '#')
                continue;
            const std::string head = "scenario: ";
            if (text.rfind(head, 0) == 0)
                all.push_back({text.substr(head.size()),
                               file.filename().string() + ":" + std::to_string(number),
                               {}});
            else
                all.back().lines.emplace_back(number, text);
        }
    }
    return all;
}

std::string Runner::run(const Scenario& scenario) {
    for (const auto& [number, text] : scenario.lines)
        if (const std::string wrong = line(text); !wrong.empty()) {
            std::string trace;
            for (const Action& action : actions_)
                trace += "\n    " + describe(action);
            return scenario.where + ", line " + std::to_string(number) + " '" + text +
                   "': " + wrong + "\n  actions since the last `when`:" + trace;
        }
    return "";
}

std::string Runner::line(const std::string& text) {
    std::istringstream in(text);
    Words words;
    for (std::string word; in >> word;)
        words.push_back(word);
    const std::string verb = words.front();
    words.erase(words.begin());
    if (verb == "given")
        return given(words);
    if (verb == "when") {
        // What was done before is what they run, or keep.
        if (words[0] != "all" && words[0] != "documents") {
            actions_.clear();
            driven_ = 0;
        }
        return when(words);
    }
    if (verb == "then") {
        std::string rest = text.substr(text.find("then") + 5);
        return then(words, rest);
    }
    return "unknown line";
}

std::string Runner::event(const Event& event) {
    const std::vector<Action> actions = apply(state_, event, now_);
    for (const Action& action : actions) {
        if (const auto* armed = std::get_if<ArmTimer>(&action))
            timers_[armed->timer] = armed->at;
        else if (const auto* cancelled = std::get_if<CancelTimer>(&action))
            timers_.erase(cancelled->timer);
        else if (const auto* finished = std::get_if<OperationDone>(&action))
            done_[finished->operation.id] = finished->operation;
        else if (const auto* command = std::get_if<SendCommand>(&action))
            commands_[command->instance] = *command;
        else if (const auto* load = std::get_if<StartLoad>(&action))
            earlier_load_ = std::exchange(load_, load->load);
        else if (const auto* copy = std::get_if<StartCopy>(&action))
            copy_ = *copy;
        else if (const auto* rollout = std::get_if<PersistRollout>(&action))
            recorded_[rollout->rollout.instance] = durable(rollout->rollout);
        else if (const auto* forget = std::get_if<ForgetRollout>(&action))
            recorded_.erase(forget->instance);
        actions_.push_back(action);
    }
    std::string wrong;
    for (const std::string& one : check_invariants(state_))
        wrong += (wrong.empty() ? "invariant broken: " : "; ") + one;
    return wrong;
}

std::string Runner::pass(Nanoseconds time) {
    const TimePoint end = now_ + time;
    for (int fired = 0; fired < 1000; ++fired) {
        const auto next =
            std::min_element(timers_.begin(), timers_.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
        if (next == timers_.end() || next->second > end)
            break;
        now_ = std::max(now_, next->second);
        const TimerId id = next->first;
        timers_.erase(next);
        if (const std::string wrong = let_speak(id) + event(DeadlineExpired{id}); !wrong.empty())
            return wrong;
    }
    now_ = end;
    return "";
}

// Who is looked at has said something just before, unless it has fallen silent.
std::string Runner::let_speak(TimerId id) {
    const auto timer = state_.timers.find(id);
    if (timer == state_.timers.end() || timer->second.kind != Timer::Kind::kLook)
        return "";
    const Instance& i = state_.instances.at(timer->second.instance);
    std::string wrong;
    for (uint32_t rank = 0; rank < i.ranks && i.session; ++rank)
        if (!silent_.contains({i.name, rank}))
            wrong += event(EngineHeard{i.name, rank});
    return wrong;
}

// Of what came meanwhile it takes in timers first.
std::string Runner::sleep(Nanoseconds time) {
    now_ += time;
    std::string wrong;
    std::vector<TimerId> due;
    for (const auto& [id, at] : timers_)
        if (at <= now_)
            due.push_back(id);
    for (const TimerId id : due)
        if (timers_.erase(id) > 0)
            wrong += event(DeadlineExpired{id});
    return wrong;
}

std::string Runner::documents(const std::string& file) {
    Result<policies::Documents> read = policies::load_paths({folder_ + "/" + file});
    if (!read)
        return read.error().message;
    documents_ = *read;
    return event(DocumentsApplied{*read});
}

namespace {

// What a load makes: by the model's name, and of several ranks "tiny.r1".
WeightSetId set_of(const LoadKey& key) {
    return WeightSetId(key.path.substr(key.path.rfind('/') + 1) +
                       (key.ranks > 1 ? ".r" + std::to_string(key.rank) : ""));
}

} // namespace

std::string Runner::drive() {
    std::string wrong;
    for (; driven_ < actions_.size() && wrong.empty(); ++driven_) {
        const Action action = actions_[driven_];
        if (const auto* load = std::get_if<StartLoad>(&action)) {
            wrong = event(LoadPlanned{load->load, "f", set_of(load->key), kModelBytes, 0});
        } else if (const auto* go = std::get_if<GoLoad>(&action)) {
            const LoadKey key = state_.loads.at(go->load).key;
            wrong = event(LoadSealed{go->load, "f", set_of(key), kModelBytes});
        } else if (const auto* copy = std::get_if<StartCopy>(&action)) {
            copy_ = *copy;
            wrong = when_copy({"copy", copy->to == kImageTier ? "written" : "planned"});
            if (copy->to == kImageTier && wrong.empty())
                wrong = when_copy({"copy", "exited"});
        } else if (const auto* keep = std::get_if<KeepWeights>(&action)) {
            wrong = event(LoaderExited{keep->load, "exit code 0"});
        } else if (const auto* refuse = std::get_if<RefuseLoad>(&action)) {
            wrong = event(LoaderExited{refuse->load, "exit code 1"});
        } else if (const auto* start = std::get_if<StartProcess>(&action)) {
            const ProcessRef process{next_pid_++, 1};
            ProcessStarted started{start->instance, process, "hash", {}};
            for (uint32_t rank = 1; rank < start->ranks; ++rank)
                started.others.push_back({ProcessRef{next_pid_++, 1}, "hash"});
            wrong = event(started);
            if (start->spec.engine.driver == policies::DriverKind::kBerth) {
                wrong += event(SessionOpened{start->instance, process, "engine", "", 0, {}, {}});
                EngineStateChanged ready;
                ready.instance = start->instance;
                ready.state = EngineState::kReady;
                ready.identity = "of " + start->spec.model;
                wrong += event(ready);
            }
        } else if (const auto* command = std::get_if<SendCommand>(&action);
                   command != nullptr && command->kind == CommandKind::kServe) {
            wrong = event(
                CommandDone{command->instance, command->command, std::nullopt, 0, 0, 0, 0, {}});
        }
    }
    return wrong;
}

std::string Runner::given(const Words& words) {
    if (auto done = given_planner(words))
        return *done;
    if (words[0] == "device")
        return event(DeviceSeen{DeviceId(words[1]),
                                words[2] == "cuda" ? DeviceKind::kCuda : DeviceKind::kHost,
                                words[2], size_of(words[3])});
    if (words[0] == "documents")
        return documents(words[1]);
    if (words[0] == "set") {
        WeightsAdopted adopted;
        adopted.id = WeightSetId(words[1]);
        adopted.path = words[2];
        adopted.device = DeviceId(words[3]);
        adopted.bytes = size_of(words[4]);
        if (has(words, "rank")) { // RANK of RANKS
            adopted.rank = static_cast<uint32_t>(std::stoul(word_after(words, "rank", "0")));
            adopted.ranks = static_cast<uint32_t>(std::stoul(word_after(words, "of", "1")));
        }
        adopted.lost = has(words, "lost"); // only its record is left
        return event(adopted);
    }
    if (words[0] == "copy")
        return given_copy(words);
    if (words[0] == "all")
        return drive();
    return "unknown line";
}

std::string Runner::when(const Words& words) {
    if (auto done = when_rollout(words))
        return *done;
    if (auto done = when_service(words))
        return *done;
    if (auto done = when_asking(words))
        return *done;
    if (auto done = when_ladder(words))
        return *done;
    if (auto done = when_planner(words))
        return *done;
    if (words[0] == "applied")
        return documents(words[1]);
    if (words[0] == "load")
        return when_load(load_, words);
    if (words[0] == "copy")
        return when_copy(words);
    if (words[0] == "the") // first load exits, or goes on
        return words[3] == "exits" ? event(LoaderExited{earlier_load_, "exit code 0"})
                                   : when_load(earlier_load_, {words.begin() + 2, words.end()});
    if (words[0] == "stuck")
        return event(DropFailed{WeightSetId(words[1]), DeviceId(words[2]),
                                Error{ErrorCode::kIo, word_after(words, "by", "busy"), "", 0}});
    if (words[0] == "shutdown")
        return event(Shutdown{});
    if (words[0] == "time")
        return pass(time_of(words[2]));
    if (words[0] == "dropped")
        return event(WeightsDropped{WeightSetId(words[1]), DeviceId(words[2])});
    if (words[0] == "guest") {
        const LeaseId lease{std::stoull(words[1])};
        if (words[2] == "leaves")
            return event(LeaseClosed{lease});
        return event(
            LeaseOpened{lease, WeightSetId(words[3]), DeviceId(words[4]), "guest " + words[1], {}});
    }
    if (words[0] == "recovered")
        return when_recovered(words);
    if (words[0] == "operation" || (words.size() > 1 && !is_instance(words[0])))
        return when_operation(words);
    return when_instance(words);
}

std::string Runner::when_load(LoadId load, const Words& words) {
    if (words[1] == "planned")
        return event(LoadPlanned{load, "f", WeightSetId(word_after(words, "as", "s1")),
                                 size_of(words[2]), size_of(word_after(words, "overhead", "0"))});
    if (words[1] == "moved")
        return event(LoadProgress{load, "loading", size_of(words[2]), size_of(words[4])});
    if (words[1] == "sealed")
        return event(
            LoadSealed{load, "f", WeightSetId(word_after(words, "as", "s1")), size_of(words[2])});
    if (words[1] == "unavailable")
        return event(LoadFailed{load, Error{ErrorCode::kUnavailable, "away", words[2], 0}});
    if (words[1] == "failed")
        return event(LoadFailed{load, Error{ErrorCode::kCorrupt, "broken", words[2], 0}});
    return event(LoaderExited{load, "exit code 1"});
}

std::string Runner::when_operation(const Words& words) {
    if (words[0] == "operation") {
        Operation operation;
        operation.id = OperationId(words[1]);
        operation.drop = words[2] == "drop";
        if (operation.drop) {
            operation.kind = OperationKind::kEvictWeights;
            operation.object = "weights/" + words[3];
            return event(OperationRecovered{operation});
        }
        operation.kind = words[2] == "preempt" ? OperationKind::kPreempt : OperationKind::kResume;
        operation.instance = InstanceName(words[3]);
        operation.mode = operation.reached =
            policies::rung_from(words[4]).value_or(policies::Rung::kPause);
        return event(OperationRecovered{operation});
    }
    const OperationId id(words[0]);
    const bool dry = has(words, "dry");
    if (words[1] == "preempts") {
        OperatorPreempt ask{
            id, InstanceName(words[2]), policies::rung_from(words[3]).value(), std::nullopt, "test",
            dry};
        if (has(words, "grace"))
            ask.grace = time_of(word_after(words, "grace", ""));
        return event(ask);
    }
    if (words[1] == "resumes")
        return event(OperatorResume{id, InstanceName(words[2]), "test", dry});
    if (words[1] == "loads") {
        LoadRequested ask;
        ask.model = ModelName(words[2]);
        ask.device = DeviceId(word_after(words, "on", ""));
        ask.rank = static_cast<uint32_t>(std::stoul(word_after(words, "rank", "0")));
        ask.operation = id;
        return event(ask);
    }
    if (words[1] == "changed")
        return when_changed(words);
    if (words[1] == "evicts")
        return event(WeightsEvict{id, WeightSetId(words[2]), dry, has(words, "drop")});
    if (words[1] == "pins" || words[1] == "unpins")
        return event(WeightsPin{id, WeightSetId(words[2]), words[1] == "pins"});
    return "unknown line";
}

std::string Runner::when_instance(const Words& words) {
    const InstanceName name(words[0]);
    const std::string& what = words[1];
    const uint64_t grant = size_of(word_after(words, "grant", "0"));
    const Instance& i = state_.instances.at(name);
    if (what == "started")
        return event(ProcessStarted{name, ProcessRef{next_pid_++, 1}, "hash"});
    if (what == "connects") {
        SessionOpened hello{name,
                            i.process ? i.process : ProcessRef{next_pid_++, 1},
                            "engine",
                            "",
                            grant,
                            EngineState::kUnknown,
                            EngineHeld::kNothing};
        hello.engine_state = has(words, "ready")      ? EngineState::kReady
                             : has(words, "draining") ? EngineState::kDraining
                                                      : EngineState::kUnknown;
        hello.held = engine_held_from(word_after(words, "held", "")).value();
        hello.identity = "of " + i.spec.model;
        hello.canary_tokens = canary_of(words);
        return event(hello);
    }
    if (what == "ready" || what == "says") {
        EngineStateChanged change;
        change.instance = name;
        change.state = what == "ready" ? EngineState::kReady : engine_state_from(words[2]).value();
        change.reason = what == "ready" ? "" : at(words, 3);
        change.grant_bytes_least = size_of(word_after(words, "least", "0"));
        change.identity = word_after(words, "identity", "of " + i.spec.model);
        change.canary_tokens = canary_of(words);
        return event(change);
    }
    if (what == "leases")
        return event(LeaseOpened{LeaseId{std::stoull(words[2])}, WeightSetId(words[3]),
                                 DeviceId(words[4]), name.value, name});
    if (what == "disconnects")
        return event(SessionClosed{name});
    if (what == "exits")
        return event(ProcessExited{name, i.process, words[2] == "0", "exit " + words[2], "log"});
    if (what == "cannot")
        return event(
            ProcessStartFailed{name, Error{ErrorCode::kIo, "no such file", at(words, 3), 2}});
    if (what == "done" || what == "refuses") {
        CommandDone done{name,
                         commands_[name].command,
                         std::nullopt,
                         grant,
                         size_of(word_after(words, "host", "0")),
                         0,
                         0,
                         {}};
        if (what == "refuses")
            done.error = Error{ErrorCode::kInternal, "cannot", words[2], 0};
        return event(done);
    }
    if (what == "driver") {
        BytesConfirmed figure{name, std::nullopt};
        if (words[2] != "unknown")
            figure.grant_bytes = size_of(words[2]);
        return event(figure);
    }
    return "unknown line";
}

std::string Runner::when_recovered(const Words& words) {
    InstanceRecovered record;
    record.name = InstanceName(words[1]);
    record.state = instance_state_from(words[2]).value();
    record.desired = desired_from(words[3]).value();
    record.held_by = words[4] == "Nobody" ? HeldBy::kNobody : held_by_from(words[4]).value();
    record.grant_bytes = record.grant_bytes_resume = size_of(words[5]);
    record.alive = words[6] == "alive";
    record.never_started = words[6] == "nowhere";
    if (words[6] != "unseen" && words[6] != "nowhere")
        record.process = ProcessRef{next_pid_++, 1};
    if (has(words, "standby") || has(words, "generation"))
        record.service = "chat";
    record.stands_by = has(words, "standby");
    record.generation =
        std::stoull(word_after(words, record.stands_by ? "standby" : "generation", "0"));
    record.token_sha256 = "hash"; // on disk before a process is started
    record.devices = {DeviceId("host-0")};
    record.weights = {WeightSetId("tiny")};
    return event(record);
}

} // namespace berth::node::test
