// SPDX-License-Identifier: Apache-2.0
// What happens to simulated engines from outside, and what others may know of them.
#include "scheduler/simulate/engines.h"

#include <algorithm>
#include <csignal>

namespace berth::simulate {

using std::chrono::milliseconds;

std::optional<uint64_t> Engines::driver_says(const node::ConfirmBytes& asked) {
    const Engine* engine = find(asked.process);
    if (engine == nullptr)
        return 0;
    if (stage_.fault("driver is silent about " + engine->key + " at " +
                         std::to_string(stage_.now.time_since_epoch().count()),
                     30))
        return std::nullopt;
    // Of each rank.
    return stage_.account.get(asked.device, "grant of " + engine->key) /
           std::max<uint64_t>(1, engine->times_on(asked.device));
}

bool Engines::is_alive(const node::ProcessRef& process) const {
    const auto found = engines_.find(process.pid);
    return found != engines_.end() && found->second.process == process;
}

void Engines::berthd_ended() {
    for (auto& [pid, engine] : engines_) {
        engine.watched = engine.own_child = false;
        for (uint32_t rank = 0; rank < engine.ranks && engine.maps_others; ++rank)
            memory_.set_known(engine.holder(rank), false);
        if (!engine.session)
            continue;
        engine.session = false;
        later(engine.process, dice_of(engine, "again").ms(20, 400),
              [this](Engine& e) { connect(e); });
    }
}

void Engines::adopted(const node::InstanceName& instance, const node::ProcessRef& process) {
    if (Engine* engine = find(process); engine != nullptr && engine->instance == instance)
        engine->watched = true;
}

void Engines::recorded(const node::InstanceName& instance, const node::ProcessRef& process) {
    if (Engine* engine = find(process); engine != nullptr && engine->instance == instance)
        engine->recorded = true;
}

bool Engines::has_unrecorded_program() const {
    for (const auto& [pid, engine] : engines_)
        if (engine.driver == policies::DriverKind::kProcess && !engine.recorded)
            return true;
    return false;
}

void Engines::die(const node::InstanceName& instance, bool clean, const std::string& how) {
    if (Engine* engine = find(instance); engine != nullptr && !engine->cannot_be_killed)
        end(*engine, clean, how);
}

void Engines::disconnect(const node::InstanceName& instance) {
    Engine* engine = find(instance);
    if (engine == nullptr || !engine->session)
        return;
    engine->session = false;
    ear_.post(node::SessionClosed{instance});
    later(engine->process, dice_of(*engine, "again").ms(20, 3000),
          [this](Engine& e) { connect(e); });
}

// One of several ends; the others hold what they have until they are killed for it, or notice.
void Engines::lose_rank(const node::InstanceName& instance, uint64_t which) {
    Engine* engine = find(instance);
    if (engine == nullptr || engine->ranks == 1 || engine->broken || engine->cannot_be_killed)
        return;
    const auto rank = static_cast<uint32_t>(which % engine->ranks);
    const node::ProcessRef process = engine->process;
    engine->broken = engine->silent = true;
    stage_.note("rank " + std::to_string(rank) + " of " + engine->key + " dies");
    memory_.unmap(engine->holder(rank));
    const bool was_open = std::exchange(engine->session, false);
    work(*engine);
    stage_.after(dice_of(*engine, "ranks").ms(1, 2000), [this, process, rank] {
        if (Engine* e = find(process))
            end(*e, false, "rank " + std::to_string(rank) + ": killed by SIGKILL");
    });
    on_end(engine->holder(rank));
    if (was_open)
        ear_.post(node::SessionClosed{instance});
}

// It is frozen: nothing more comes from it.
void Engines::fall_silent(const node::InstanceName& instance) {
    if (Engine* engine = find(instance))
        engine->silent = true;
}

// Engines report each second. Of those reports only the last one before berthd looks is played.
void Engines::speak_before(node::TimerId id) {
    const node::NodeState* state = ear_.state();
    const auto timer = state->timers.find(id);
    if (timer == state->timers.end() || timer->second.kind != node::Timer::Kind::kLook)
        return;
    const node::InstanceName instance = timer->second.instance;
    const Engine* engine = find(instance);
    if (engine == nullptr || !engine->session || engine->stopped)
        return;
    if (engine->stuck_since) {
        node::EngineReport stuck;
        stuck.instance = instance;
        stuck.counters.requests_running = 1;
        stuck.counters.step_ms = static_cast<uint64_t>(
            std::chrono::duration_cast<milliseconds>(stage_.now - *engine->stuck_since).count());
        const uint32_t ranks = engine->ranks;
        ear_.post(stuck);
        for (uint32_t rank = 1; rank < ranks; ++rank)
            ear_.post(node::EngineHeard{instance, rank});
    } else if (!engine->silent) {
        const uint32_t ranks = engine->ranks;
        for (uint32_t rank = 0; rank < ranks; ++rank)
            ear_.post(node::EngineHeard{instance, rank});
    }
}

// The kernel would let only one have the journal; the node must not rest on that.
std::optional<Error> Engines::serve(Engine& engine, uint64_t generation) {
    for (const auto& [pid, other] : engines_)
        if (&other != &engine && other.service == engine.service && other.serving > 0)
            stage_.wrong("split-brain", engine.key + " is to answer " + engine.service +
                                            " as generation " + std::to_string(generation) +
                                            " while " + other.key + " does, as " +
                                            std::to_string(other.serving));
    uint64_t& last = generations_[engine.service];
    if (generation == engine.serving)
        return std::nullopt;
    if (generation <= last) {
        if (!stage_.records_lost)
            stage_.wrong("stale-generation", engine.key + " is to answer as generation " +
                                                 std::to_string(generation) + " after " +
                                                 std::to_string(last));
        return Error{ErrorCode::kFailedPrecondition, "a later one has served", "StaleGeneration",
                     0};
    }
    engine.serving = last = generation;
    return std::nullopt;
}

// Of its socket; it may have requests to finish.
void Engines::let_go(Engine& engine) {
    Dice dice = dice_of(engine, "let go");
    const Nanoseconds left = dice.one_in(3) ? dice.ms(200, 20'000) : dice.ms(1, 150);
    engine.serving = 0;
    engine.says = node::EngineState::kDraining;
    const node::ProcessRef process = engine.process;
    later(process, left, [this](Engine& e) { end(e, true, "exit code 0"); });
    if (!engine.session)
        return;
    node::EngineStateChanged event;
    event.instance = engine.instance;
    event.state = node::EngineState::kDraining;
    ear_.post(event);
}

void Engines::follow(const policies::Documents& documents) {
    std::erase_if(generations_, [&](const auto& one) {
        const policies::InstanceSpec* spec = documents.find_instance(one.first);
        return spec == nullptr || spec->engine.listen.empty();
    });
}

void Engines::stick(const node::InstanceName& instance) {
    Engine* engine = find(instance);
    if (engine == nullptr || engine->service.empty() || !engine->session ||
        engine->says != node::EngineState::kReady)
        return;
    engine->silent = true; // its loop; its reports come
    engine->stuck_since = stage_.now;
}

void Engines::signal(const node::InstanceName& instance, const node::ProcessRef& process,
                     int number) {
    Engine* engine = find(instance);
    if (engine == nullptr || engine->process.pid != process.pid || !engine->watched)
        return;
    if (engine->process.start_ticks != process.start_ticks)
        return stage_.wrong("pid-reuse", "signal " + std::to_string(number) + " for an earlier " +
                                             "process with pid " + std::to_string(process.pid) +
                                             " reaches " + engine->key);
    const node::ProcessRef ref = engine->process;
    if (number == SIGSTOP) {
        engine->stopped = true;
        work(*engine);
    } else if (number == SIGCONT) {
        engine->stopped = false;
        work(*engine);
        for (Calendar::Deed& deed : std::exchange(engine->when_continued, {}))
            stage_.after(milliseconds(0), std::move(deed));
    } else if (number == SIGTERM) {
        signal(instance, process, SIGCONT); // as the actor does
        if (!stage_.fault("end " + engine->key + " ignores SIGTERM", 100))
            later(ref, dice_of(*engine, "term").ms(1, 200),
                  [this](Engine& e) { end(e, false, "killed by SIGTERM"); });
    } else if (number == SIGKILL) {
        if (engine->cannot_be_killed ||
            stage_.fault("end " + engine->key + " cannot be killed", 60)) {
            engine->cannot_be_killed = true;
            return;
        }
        stage_.after(dice_of(*engine, "kill").ms(1, 20), [this, ref] {
            if (Engine* e = find(ref))
                end(*e, false, "killed by SIGKILL");
        });
    }
}

void Engines::arrivals(const node::InstanceName& instance, uint64_t requests, bool burning) {
    const Engine* engine = find(instance);
    if (engine == nullptr || engine->driver != policies::DriverKind::kBerth)
        return;
    node::EngineReport busy;
    busy.instance = instance;
    busy.counters.requests_running = requests;
    busy.counters.requests_waiting = requests > 4 ? requests - 4 : 0;
    busy.counters.short_of_memory = requests > 6 ? requests - 6 : 0;
    busy.counters.ttft_ms.fill(burning ? 900 : 60);
    node::EngineReport idle;
    idle.instance = instance;
    idle.counters.requests_done = requests;
    auto say = [this](const node::EngineReport& report) {
        return [this, report](Engine& e) {
            if (e.session && e.says == node::EngineState::kReady && !e.silent)
                ear_.post(report);
        };
    };
    later(engine->process, milliseconds(0), say(busy));
    later(engine->process, milliseconds(1000), say(busy));
    later(engine->process, milliseconds(2000), say(idle));
}

void Engines::calm_down() {
    for (auto& [pid, engine] : engines_)
        if (engine.cannot_be_killed)
            stage_.after(std::chrono::seconds(20), [this, process = engine.process] {
                if (Engine* e = find(process))
                    end(*e, false, "killed by SIGKILL at last");
            });
}

const Engines::Engine* Engines::of(const node::InstanceName& instance) const {
    for (const auto& [pid, engine] : engines_)
        if (engine.instance == instance)
            return &engine;
    return nullptr;
}

Engines::Engine* Engines::find(const node::InstanceName& instance) {
    for (auto& [pid, engine] : engines_)
        if (engine.instance == instance)
            return &engine;
    return nullptr;
}

Engines::Engine* Engines::find(const node::ProcessRef& process) {
    const auto found = engines_.find(process.pid);
    return found != engines_.end() && found->second.process == process ? &found->second : nullptr;
}

node::ProcessRef Engines::earlier(const node::InstanceName& instance) const {
    const auto found = earlier_.find(instance);
    return found == earlier_.end() ? node::ProcessRef() : found->second;
}

void Engines::later(const node::ProcessRef& process, Nanoseconds delay,
                    std::function<void(Engine&)> deed) {
    Calendar::Deed then = [this, process, deed = std::move(deed)] {
        Engine* engine = find(process);
        if (engine == nullptr)
            return;
        if (engine->stopped)
            engine->when_continued.push_back([this, process, deed] {
                if (Engine* e = find(process))
                    deed(*e);
            });
        else
            deed(*engine);
    };
    stage_.after(delay, std::move(then));
}

} // namespace berth::simulate
