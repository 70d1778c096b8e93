// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/engines.h"

#include <algorithm>

namespace berth::simulate {

using node::EngineHeld;
using node::EngineState;
using std::chrono::milliseconds;

namespace {

constexpr uint64_t kHelloRefusalsMax = 20;

std::string grant_of(const Engines::Engine& engine) {
    return "grant of " + engine.key;
}

} // namespace

Engines::Engines(Stage& stage, const Shape& shape, Ear& ear, WeightMemory& memory)
    : stage_(stage), ear_(ear), memory_(memory) {
    for (const std::string& name : shape.jobs) {
        Dice dice = stage.dice.of(name).of("job");
        jobs_[node::InstanceName(name)] = {dice.between(10, 120), 0, dice.ms(20, 400)};
    }
}

int Engines::next_pid() {
    // As a busy machine would, soon after: what confuses processes by their pids is to be found.
    if (!free_pids_.empty() && stage_.dice.of("pid", ticks_).one_in(2)) {
        const int pid = free_pids_.back();
        free_pids_.pop_back();
        return pid;
    }
    return ++last_pid_;
}

node::ProcessRef Engines::start(const node::StartProcess& start, const std::string& token) {
    const uint64_t number = ++starts_[start.instance];
    Engine engine;
    engine.instance = start.instance;
    engine.key = start.instance.value + "/" + std::to_string(number);
    if (stage_.fault("start " + engine.key + " is refused", 30))
        return {};
    if (const Engine* other = of(start.instance))
        stage_.wrong("two-processes",
                     engine.key + " is started while " + other->key +
                         " lives: both would hold its grant and write its answers");
    engine.process = {next_pid(), ++ticks_};
    engine.token = token;
    engine.driver = start.spec.engine.driver;
    if (!start.spec.engine.listen.empty())
        engine.service = start.spec.standby_of.empty() ? start.spec.name : start.spec.standby_of;
    engine.identity = "of " + start.model.name;
    engine.devices = start.devices;
    engine.grant_asked = start.grant_bytes;
    if (const node::NodeState* state = ear_.state())
        if (const auto i = state->instances.find(start.instance); i != state->instances.end())
            engine.weights = i->second.weights;
    engine.ranks = start.ranks;
    Engine& kept = engines_[engine.process.pid] = std::move(engine);
    stage_.note("process " + kept.key + " pid " + std::to_string(kept.process.pid) + " starts");
    for (const node::DeviceId& device : kept.places())
        stage_.account.set(device, "context of " + kept.key,
                           node::process_overhead_bytes(*ear_.state(), device) *
                               kept.times_on(device) * 9 / 10);
    Dice dice = dice_of(kept, "start");
    const node::ProcessRef process = kept.process;
    if (kept.driver == policies::DriverKind::kProcess) {
        take(kept, start.grant_bytes);
        kept.says = EngineState::kReady;
        const bool clean = !dice.one_in(4);
        later(process, dice.ms(1000, 90'000),
              [this, clean](Engine& e) { end(e, clean, clean ? "exit code 0" : "exit code 3"); });
    } else if (stage_.fault("start " + kept.key + " dies before hello", 30)) {
        later(process, dice.ms(1, 50), [this](Engine& e) { end(e, false, "exit code 1"); });
    } else {
        later(process, dice.ms(5, 300), [this](Engine& e) { connect(e); });
    }
    stage_.check_account();
    return process;
}

void Engines::connect(Engine& engine) {
    // A frozen one does not come back. If its pid is not on record nobody could find it otherwise.
    const bool frozen = engine.silent && !engine.stuck_since && engine.recorded;
    if (engine.session || engine.broken || frozen)
        return;
    const node::ProcessRef process = engine.process;
    const node::NodeState* state = ear_.state();
    Dice dice = dice_of(engine, "connect").of("", ++engine.connects_refused);
    if (state == nullptr || !state->ready) {
        later(process, dice.ms(20, 400), [this](Engine& e) { connect(e); });
        --engine.connects_refused;
        return;
    }
    const auto found = state->instances.find(engine.instance);
    if (found == state->instances.end() || found->second.token_sha256 != engine.token) {
        if (engine.connects_refused > kHelloRefusalsMax)
            return end(engine, false, "exit code 1: its token is not known");
        return later(process, dice.ms(20, 400), [this](Engine& e) { connect(e); });
    }
    engine.connects_refused = 0;
    engine.session = engine.watched = true;
    const uint64_t granted = found->second.grant_bytes;
    const uint32_t ranks = engine.ranks;
    ear_.post(node::SessionOpened{engine.instance, process, "engine", "", engine.grant, engine.says,
                                  engine.held, engine.serving, engine.identity});
    if (!engine.attached)
        later(process, dice.ms(1, 20), [this, granted](Engine& e) { attach(e, granted); });
    else
        work(engine);
    // The post may have been the end of berthd, or its word the engine's.
    for (uint32_t rank = 0; rank < ranks; ++rank)
        if (Engine* back = find(process);
            back != nullptr && back->session && memory_.holder(back->holder(rank)) != nullptr)
            on_back(back->holder(rank), back->instance);
}

bool Engines::has_token(const std::string& token) const {
    return std::ranges::any_of(engines_,
                               [&token](const auto& one) { return one.second.token == token; });
}

void Engines::attach(Engine& engine, uint64_t grant_bytes) {
    if (engine.attached || !engine.session)
        return;
    if (!engine.weights.empty() && !map_weights(engine))
        return ask_for_weights(engine, grant_bytes);
    engine.attached = true;
    take(engine, grant_bytes);
    Dice dice = dice_of(engine, "warm up");
    Nanoseconds delay = stage_.start_time.value_or(dice.ms(20, 2500));
    if (stage_.fault("start " + engine.key + " is never ready", 20))
        return;
    if (stage_.fault("start " + engine.key + " dies before it is ready", 40))
        return later(engine.process, delay, [this](Engine& e) { end(e, false, "exit code 139"); });
    if (stage_.fault("start " + engine.key + " is slow", 30))
        delay += dice.ms(2000, 30'000);
    later(engine.process, delay, [this](Engine& e) { ready(e); });
}

// Each rank its own part. Of a plain program on several devices only the first one is looked at.
bool Engines::map_weights(Engine& engine) {
    const node::NodeState* state = ear_.state();
    const auto memory = [&](size_t rank) {
        const node::DeviceId& device = engine.devices[rank];
        const node::WeightSet* set =
            state == nullptr ? nullptr : node::find_set(*state, engine.weights[rank], device);
        return set == nullptr || set->dropping ? 0
                                               : memory_.memory_of(engine.weights[rank], device);
    };
    for (size_t rank = 0; rank < engine.weights.size(); ++rank)
        if (memory(rank) == 0)
            return false;
    const node::ProcessRef process = engine.process;
    const node::InstanceName instance = engine.instance;
    std::vector<uint64_t> holders;
    for (uint32_t rank = 0; rank < engine.weights.size(); ++rank) {
        holders.push_back(engine.holder(rank));
        memory_.map(holders.back(), memory(rank), engine.key, true);
    }
    for (uint64_t holder : holders)
        if (find(process) != nullptr)
            on_back(holder, instance);
    return true;
}

// They went with the keeper. It asks for them as a newcomer would, and gives up after a while.
void Engines::ask_for_weights(Engine& engine, uint64_t grant_bytes) {
    constexpr uint64_t kAsksMax = 12;
    const node::NodeState* state = ear_.state();
    const auto i = state->instances.find(engine.instance);
    const policies::ModelSpec* model =
        i == state->instances.end() ? nullptr : state->documents.find_model(i->second.spec.model);
    if (!memory_.keeper_has_died() && !stage_.records_lost)
        stage_.wrong("weights-vanished", engine.key + " attaches to " +
                                             engine.weights.front().value + ", which is not on " +
                                             engine.devices.front().value + " any more");
    if (model == nullptr || model->tensor_parallel != engine.ranks ||
        ++engine.loads_asked > kAsksMax)
        return end(engine, false, "exit code 1: its weights are gone");
    engine.maps_others = true;
    std::vector<node::LoadRequested> asked;
    for (uint32_t rank = 0; rank < engine.ranks; ++rank) {
        const node::LoadKey key = node::load_key(*model, engine.devices[rank], rank);
        engine.weights[rank] = set_of(key);
        asked.push_back({node::ModelName(model->name), "", "auto", key.device, {}});
        asked.back().rank = rank;
    }
    later(engine.process, milliseconds(1500),
          [this, grant_bytes](Engine& e) { attach(e, grant_bytes); });
    for (node::LoadRequested& one : asked)
        ear_.post(std::move(one));
}

void Engines::ready(Engine& engine) {
    engine.says = EngineState::kReady;
    if (engine.session) {
        node::EngineStateChanged event;
        event.instance = engine.instance;
        event.state = EngineState::kReady;
        event.grant_bytes = engine.grant;
        event.identity = engine.identity;
        ear_.post(event);
    }
    work(engine);
}

void Engines::take(Engine& engine, uint64_t grant_bytes) {
    engine.grant = grant_bytes;
    for (const node::DeviceId& device : engine.places())
        stage_.account.set(device, grant_of(engine), grant_bytes * engine.times_on(device));
    stage_.check_account();
}

void Engines::give(Engine& engine, uint64_t grant_bytes, bool lags) {
    engine.grant = grant_bytes;
    auto free = [this](Engine& e) {
        for (const node::DeviceId& device : e.devices)
            if (stage_.account.get(device, grant_of(e)) > e.grant)
                stage_.account.set(device, grant_of(e), e.grant);
    };
    if (lags)
        later(engine.process, milliseconds(35), free);
    else
        free(engine);
}

void Engines::command(const node::SendCommand& command) {
    Engine* engine = find(command.instance);
    if (engine == nullptr || !engine->session) {
        node::CommandDone gone;
        gone.instance = command.instance;
        gone.command = command.command;
        gone.error = Error{ErrorCode::kUnavailable, "not connected", "NotConnected", 0};
        return ear_.post(std::move(gone));
    }
    const std::string what = engine->key + " command " + std::to_string(++engine->commands) + " " +
                             std::string(to_string(command.kind));
    Dice dice = stage_.dice.of(what);
    Nanoseconds delay = dice.ms(1, 60);
    if (stage_.fault(what + " is never answered", 25))
        return;
    if (stage_.fault(what + " kills it", 15))
        return later(engine->process, delay,
                     [this](Engine& e) { end(e, false, "killed by SIGSEGV"); });
    if (stage_.fault(what + " is refused", 25)) {
        node::CommandDone done{
            command.instance, command.command, std::nullopt, engine->grant, 0, 0, 0, {}};
        done.error = Error{ErrorCode::kInternal, "the engine would not", "Refused", 0};
        return later(engine->process, delay, [this, done](Engine& e) { answer(e, done); });
    }
    if (stage_.fault(what + " is answered late", 30))
        delay += dice.ms(500, 8000);
    later(engine->process, delay, [this, command](Engine& e) { obey(e, command); });
}

void Engines::obey(Engine& engine, const node::SendCommand& command) {
    if (engine.silent || engine.ends)
        return;
    const std::string what = engine.key + " command to " + std::string(to_string(command.kind));
    const std::string lie = what + " " + std::to_string(engine.commands) + " frees half";
    const bool lags = stage_.dice.of(lie).one_in(2);
    node::CommandDone done{command.instance, command.command, std::nullopt, 0, 0, 0, 0, {}};
    switch (command.kind) {
    case node::CommandKind::kPause:
        if (engine.held == EngineHeld::kNothing)
            engine.held = EngineHeld::kPaused;
        break;
    case node::CommandKind::kResume:
        if (engine.held == EngineHeld::kPaused)
            engine.held = EngineHeld::kNothing;
        else if (engine.held == EngineHeld::kOffloaded)
            done.error = Error{ErrorCode::kFailedPrecondition, "it is offloaded", "NotPaused", 0};
        break;
    case node::CommandKind::kOffload:
    case node::CommandKind::kShrink: {
        const bool all = command.kind == node::CommandKind::kOffload;
        const uint64_t target = all ? 0 : std::min(engine.grant, command.grant_bytes);
        if (all) {
            engine.held = EngineHeld::kOffloaded;
            done.host_bytes = command.kv == policies::KvOnOffload::kDrop ? 0 : engine.grant / 8;
        }
        if (stage_.fault(lie, 60)) { // and says that it has freed all
            const uint64_t kept = target + (engine.grant - target) / 2;
            give(engine, kept, false);
            engine.grant = target;
        } else {
            give(engine, target, lags);
        }
        done.grant_bytes = target;
        break;
    }
    case node::CommandKind::kRestore:
    case node::CommandKind::kGrow:
        if (command.kind == node::CommandKind::kRestore)
            engine.held = EngineHeld::kNothing;
        take(engine, std::max(engine.grant, command.grant_bytes));
        break;
    case node::CommandKind::kServe:
        done.error = serve(engine, command.generation);
        break;
    case node::CommandKind::kStop:
        engine.ends = true;
        work(engine);
        if (command.hand_over != node::HandOver::kNo)
            return let_go(engine);
        return later(engine.process, dice_of(engine, "stop").ms(1, 150),
                     [this](Engine& e) { end(e, true, "exit code 0"); });
    }
    if (done.grant_bytes == 0 && command.kind != node::CommandKind::kOffload)
        done.grant_bytes = engine.grant;
    work(engine);
    answer(engine, std::move(done));
}

void Engines::answer(Engine& engine, node::CommandDone done) {
    if (engine.session)
        ear_.post(std::move(done));
}

// A batch engine answers lines while nothing holds it; each line is on disk once it is answered.
void Engines::work(Engine& engine) {
    const auto found = jobs_.find(engine.instance);
    if (found == jobs_.end())
        return;
    Job& job = found->second;
    if (engine.works)
        job.answered = std::min<uint64_t>(
            job.lines,
            job.answered + static_cast<uint64_t>((stage_.now - engine.worked_since) / job.each));
    engine.works = engine.alive && !engine.stopped && !engine.ends &&
                   engine.says == EngineState::kReady && engine.held == EngineHeld::kNothing;
    engine.worked_since = stage_.now;
    const uint64_t round = ++engine.work_round;
    if (!engine.works)
        return;
    later(engine.process, job.each * static_cast<int64_t>(job.lines - job.answered),
          [this, round](Engine& e) {
              if (e.work_round != round)
                  return;
              work(e);
              e.ends = true;
              e.works = false;
              e.says = EngineState::kSucceeded;
              if (e.session) {
                  node::EngineStateChanged event;
                  event.instance = e.instance;
                  event.state = EngineState::kSucceeded;
                  ear_.post(event);
              }
              later(e.process, milliseconds(5), [this](Engine& d) { end(d, true, "exit code 0"); });
          });
}

void Engines::end(Engine& engine, bool clean, const std::string& how) {
    engine.ends = true;
    engine.session = engine.session && ear_.state() != nullptr;
    work(engine);
    stage_.note("process " + engine.key + " ends: " + how);
    for (const node::DeviceId& device : engine.devices) {
        stage_.account.set(device, grant_of(engine), 0);
        stage_.account.set(device, "context of " + engine.key, 0);
    }
    for (uint32_t rank = 0; rank < engine.ranks; ++rank)
        memory_.unmap(engine.holder(rank));
    const Engine gone = engine;
    for (uint32_t rank = 0; rank < gone.ranks; ++rank)
        on_end(gone.holder(rank));
    engines_.erase(gone.process.pid);
    free_pids_.push_back(gone.process.pid);
    earlier_[gone.instance] = gone.process;
    Dice dice = dice_of(gone, "end");
    // Of another's child only the end is known.
    node::ProcessExited exited{gone.instance, gone.process, clean && gone.own_child,
                               gone.own_child ? how : "ended", "log"};
    // Its connection may be seen to close long before the kernel is done with it.
    const bool slowly = gone.watched && gone.session && dice.one_in(3);
    if (slowly)
        stage_.after(dice.ms(1, 3),
                     [this, gone] { ear_.post(node::ProcessDying{gone.instance, gone.process}); });
    if (gone.watched)
        stage_.after(slowly ? dice.ms(4, 900) : dice.ms(0, 3),
                     [this, exited] { ear_.post(exited); });
    if (gone.session)
        stage_.after(dice.ms(0, 3), [this, gone] {
            // A newer connection of the same instance has replaced it otherwise.
            if (const Engine* next = find(gone.instance); next == nullptr || !next->session)
                ear_.post(node::SessionClosed{gone.instance});
        });
}

} // namespace berth::simulate
