// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/shape.h"
#include "scheduler/simulate/stage.h"
#include "scheduler/simulate/weight_memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace berth::simulate {

// The part of berthd that engines and loaders talk to. Posts of a berthd that is away are lost.
class Ear {
  public:
    Ear() = default;
    Ear(const Ear&) = delete;
    Ear& operator=(const Ear&) = delete;
    virtual ~Ear() = default;
    virtual void post(node::Event event) = 0;
    // nullptr: nobody listens.
    virtual const node::NodeState* state() const = 0;
};

// Simulated engines and plain programs: processes with a pid, a connection, memory and work. They
// live on when berthd dies, connect again, and say what they hold. Each takes all that it is
// granted at once, so that bytes given twice are found. Faults: they do not start, die, fall
// silent, refuse, answer late, lie about what they freed, cannot be killed. One thread; the stage,
// the shape and the ear outlive it.
class Engines {
  public:
    static constexpr uint64_t kHoldersFrom = 1'000'000;     // of memory; below: guests
    static constexpr uint64_t kRankHolders = 1'000'000'000; // further ranks
    struct Engine {
        node::InstanceName instance;
        node::ProcessRef process;
        std::string token;
        std::string key; // "i3/7": its seventh process
        policies::DriverKind driver = policies::DriverKind::kBerth;
        std::vector<node::DeviceId> devices;    // of several ranks: by rank
        std::vector<node::WeightSetId> weights; // by rank; empty: none
        uint32_t ranks = 1;
        bool broken = false; // a rank is gone, the others have not noticed
        uint64_t grant_asked = 0;
        uint64_t grant = 0; // on each device, truly
        bool alive = true, stopped = false, cannot_be_killed = false, watched = true,
             own_child = true;
        bool recorded = false; // its pid is in the records
        bool session = false, attached = false, silent = false, ends = false;
        std::optional<node::TimePoint> stuck_since; // silent, but for its reports
        node::EngineState says = node::EngineState::kStarting;
        node::EngineHeld held = node::EngineHeld::kNothing;
        std::string identity; // what a request means to it
        std::string service;  // by whose name it answers a socket; empty: it has none
        uint64_t serving = 0; // as which it does
        uint64_t commands = 0;
        uint64_t connects_refused = 0;
        uint64_t loads_asked = 0; // for its weights, which were gone when it came for them
        bool maps_others = false; // than those that it was started for
        uint64_t holder(uint32_t rank = 0) const {
            return kHoldersFrom + process.start_ticks + kRankHolders * rank;
        }
        auto places() const { return node::each_once(devices); }
        uint64_t times_on(const node::DeviceId& device) const {
            return static_cast<uint64_t>(std::count(devices.begin(), devices.end(), device));
        }
        node::TimePoint worked_since; // lines are answered from here on
        bool works = false;
        uint64_t work_round = 0;
        std::vector<Calendar::Deed> when_continued;
    };
    // The durable file of a batch instance's answers.
    struct Job {
        uint64_t lines = 0;
        uint64_t answered = 0;
        Nanoseconds each{0};
    };

    Engines(Stage& stage, const Shape& shape, Ear& ear, WeightMemory& memory);

    // What the actor does. start() gives no process when it cannot be started.
    node::ProcessRef start(const node::StartProcess& start, const std::string& token);
    void signal(const node::InstanceName& instance, const node::ProcessRef& process, int number);
    void command(const node::SendCommand& command);
    std::optional<uint64_t> driver_says(const node::ConfirmBytes& asked);
    bool is_alive(const node::ProcessRef& process) const;
    bool has_token(const std::string& token) const; // one that lives
    void berthd_ended();
    void recorded(const node::InstanceName& instance, const node::ProcessRef& process);
    // A plain program that nobody could find again, since its pid is not on record yet.
    bool has_unrecorded_program() const;
    void adopted(const node::InstanceName& instance, const node::ProcessRef& process);

    // What happens to them.
    void die(const node::InstanceName& instance, bool clean, const std::string& how);
    void disconnect(const node::InstanceName& instance);
    void lose_rank(const node::InstanceName& instance, uint64_t which);
    void fall_silent(const node::InstanceName& instance);
    void arrivals(const node::InstanceName& instance, uint64_t requests, bool burning);
    void stick(const node::InstanceName& instance);    // a step of its does not end
    void speak_before(node::TimerId id);               // this timer fires
    void follow(const policies::Documents& documents); // what has no service now loses its journal
    void calm_down();                                  // what could not be killed ends at last

    const std::map<int, Engine>& all() const { return engines_; }
    const std::map<node::InstanceName, Job>& jobs() const { return jobs_; }
    const Engine* of(const node::InstanceName& instance) const; // the one that lives
    // Of a process that has ended, as a word that comes late; pid 0: none has.
    node::ProcessRef earlier(const node::InstanceName& instance) const;
    // An engine that has weights mapped is connected, or one has ended; by its number as a holder.
    std::function<void(uint64_t, const node::InstanceName&)> on_back;
    std::function<void(uint64_t)> on_end;
    std::function<node::WeightSetId(const node::LoadKey&)> set_of;

  private:
    Engine* find(const node::InstanceName& instance);
    Engine* find(const node::ProcessRef& process);
    // Does something with the process if it still lives then, when it is not stopped.
    void later(const node::ProcessRef& process, Nanoseconds delay,
               std::function<void(Engine&)> deed);
    void connect(Engine& engine);
    void attach(Engine& engine, uint64_t grant_bytes);
    bool map_weights(Engine& engine);
    void ask_for_weights(Engine& engine, uint64_t grant_bytes);
    void ready(Engine& engine);
    void obey(Engine& engine, const node::SendCommand& command);
    std::optional<Error> serve(Engine& engine, uint64_t generation);
    void let_go(Engine& engine);
    void answer(Engine& engine, node::CommandDone done);
    void take(Engine& engine, uint64_t grant_bytes);
    void give(Engine& engine, uint64_t grant_bytes, bool lags);
    void work(Engine& engine); // goes on with its lines, or stops
    void end(Engine& engine, bool clean, const std::string& how);
    int next_pid();
    Dice dice_of(const Engine& engine, std::string_view topic) const {
        return stage_.dice.of(engine.key).of(topic);
    }

    Stage& stage_;
    Ear& ear_;
    WeightMemory& memory_;
    std::map<int, Engine> engines_; // by pid, the living
    std::map<node::InstanceName, Job> jobs_;
    std::map<node::InstanceName, uint64_t> starts_;
    std::map<node::InstanceName, node::ProcessRef> earlier_;
    std::map<std::string, uint64_t> generations_; // the latest of each service
    std::vector<int> free_pids_;                  // used again soon
    int last_pid_ = 100;
    uint64_t ticks_ = 1000;
};

} // namespace berth::simulate
