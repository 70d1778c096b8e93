// SPDX-License-Identifier: Apache-2.0
// Goal: whatever happens in whatever order, the invariants hold, no byte is lost, and the same
// events give the same actions. Method: a seeded stream of events from fake engines, loaders and
// operators, of which some lie, die or answer late; the invariants are checked after each.
// The seeds are the same each time; BERTH_TEST_SEED=N starts at another, =random at any (known
// faults of such seeds: docs/status.md).
#include "policies/yaml.h"
#include "scheduler/node/reducer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

namespace berth::node::test {

namespace {

constexpr const char* kDocuments = R"(
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {name: p}
spec: {memory: {hostTier: 1536Mi, imageDir: /images, imageLimit: 2Gi}}
---
kind: Model
metadata: {name: a}
spec: {path: /models/a}
---
kind: Model
metadata: {name: b}
spec: {path: /models/b}
---
kind: Instance
metadata: {name: chat}
spec: {model: a, priorityClassName: online, resources: {requests: {memory: 512Mi}, limits: {memory: 1Gi}}, engine: {command: [e]}}
---
kind: Instance
metadata: {name: search}
spec: {model: b, priorityClassName: online, resources: {requests: {memory: 256Mi}, limits: {memory: 2Gi}}, engine: {command: [e]}}
---
kind: Instance
metadata: {name: nightly}
spec: {model: a, resources: {limits: {memory: 2Gi}}, engine: {command: [e]}}
---
kind: Instance
metadata: {name: weekly}
spec: {model: b, restart: Always, resources: {limits: {memory: 1Gi}}, engine: {command: [e]}}
---
kind: Instance
metadata: {name: job}
spec: {engine: {driver: process, command: [j]}}
)";

class World {
  public:
    explicit World(uint64_t seed) : random_(seed) {
        all_ = policies::parse_documents(kDocuments, "random.yaml").value();
        give(DeviceSeen{DeviceId("host-0"), DeviceKind::kHost, "", 4ULL << 30});
        give(DeviceSeen{DeviceId("GPU-1"), DeviceKind::kCuda, "", 9ULL << 30});
        give(DocumentsApplied{all_});
    }

    // One thing happens. Returns what is wrong afterwards.
    std::string step() {
        now_ += std::chrono::milliseconds(below(200));
        if (!queue_.empty() && below(4) != 0) {
            const size_t n = below(queue_.size());
            const Event next = queue_[n];
            queue_.erase(queue_.begin() + static_cast<long>(n));
            return give(next);
        }
        if (!timers_.empty() && below(3) == 0) {
            auto next = timers_.begin();
            for (auto it = timers_.begin(); it != timers_.end(); ++it)
                if (it->second < next->second)
                    next = it;
            now_ = std::max(now_, next->second);
            const TimerId id = next->first;
            timers_.erase(next);
            return give(DeadlineExpired{id});
        }
        return give(surprise());
    }

    // Everybody answers at once and truly, until nothing is left to do.
    std::string calm(Nanoseconds time) {
        calm_ = true;
        const TimePoint end = now_ + time;
        for (int n = 0; n < 20000 && now_ < end; ++n) {
            std::string wrong;
            if (!queue_.empty()) {
                const Event next = queue_.front();
                queue_.erase(queue_.begin());
                wrong = give(next);
            } else if (!timers_.empty()) {
                auto next = timers_.begin();
                for (auto it = timers_.begin(); it != timers_.end(); ++it)
                    if (it->second < next->second)
                        next = it;
                now_ = std::max(now_, next->second);
                const TimerId id = next->first;
                timers_.erase(next);
                wrong = give(DeadlineExpired{id});
            } else {
                break;
            }
            if (!wrong.empty())
                return wrong;
        }
        calm_ = false;
        return "";
    }

    std::string give(const Event& event) {
        const std::vector<Action> actions = apply(state_, event, now_);
        for (const Action& action : actions) {
            trace_ << describe(action) << '\n';
            std::visit([this](const auto& one) { react(one); }, action);
        }
        std::string wrong;
        for (const std::string& one : check_invariants(state_))
            wrong += one + "; ";
        return wrong;
    }

    const NodeState& state() const { return state_; }
    std::string trace() const { return trace_.str(); }
    bool idle() const { return queue_.empty() && timers_.empty(); }
    const policies::Documents& all() const { return all_; }

  private:
    uint64_t below(uint64_t bound) { return random_() % bound; }
    bool lies() { return !calm_ && below(8) == 0; }
    void later(Event event) { queue_.push_back(std::move(event)); }
    static WeightSetId set_of(const LoadKey& key) { return WeightSetId(key.path.substr(8)); }

    template <typename Other>
    void react(const Other&) {}
    void react(const ArmTimer& a) { timers_[a.timer] = a.at; }
    void react(const CancelTimer& a) { timers_.erase(a.timer); }
    void react(const StartLoad& a) {
        loads_[a.load] = a.key;
        if (lies())
            later(LoadFailed{a.load, Error{ErrorCode::kCorrupt, "bad", "Corrupt", 0}});
        else
            later(LoadPlanned{a.load, "f", set_of(a.key), 1ULL << 30, 100ULL << 20});
        if (lies())
            later(LoaderExited{a.load, "killed"});
    }
    void react(const StartCopy& a) {
        copies_[a.load] = a.set;
        if (lies())
            return later(LoaderExited{a.load, "killed"});
        if (lies())
            later(LoadFailed{a.load, Error{ErrorCode::kIo, "disk", "DiskFull", 0}});
        if (a.to == DeviceId("image")) {
            later(ImageWritten{a.load, 1ULL << 30});
            return later(LoaderExited{a.load, "0"});
        }
        later(LoadPlanned{a.load, "f", lies() ? WeightSetId("b") : a.set, 1ULL << 30,
                          lies() ? 100ULL << 30 : 10ULL << 20});
    }
    void react(const GoLoad& a) {
        if (const auto copy = copies_.find(a.load); copy != copies_.end()) {
            if (lies())
                return later(LoaderExited{a.load, "killed"});
            return later(LoadSealed{a.load, "f", copy->second, lies() ? 2ULL << 30 : 1ULL << 30});
        }
        if (lies())
            return later(LoaderExited{a.load, "killed"});
        later(LoadSealed{a.load, "f", set_of(loads_[a.load]), 1ULL << 30});
    }
    void react(const RefuseLoad& a) { later(LoaderExited{a.load, "1"}); }
    void react(const KillLoad& a) { later(LoaderExited{a.load, "killed"}); }
    void react(const KeepWeights& a) { later(LoaderExited{a.load, "0"}); }
    void react(const LoadFinished&) {}
    void react(const DropWeights& a) {
        if (lies())
            return later(DropFailed{a.set, a.device, Error{ErrorCode::kIo, "busy", "", 16}});
        later(WeightsDropped{a.set, a.device});
    }
    void react(const StartProcess& a) {
        if (lies())
            return later(ProcessStartFailed{a.instance, Error{ErrorCode::kIo, "no", "", 2}});
        const ProcessRef process{next_pid_++, 7};
        // The actor reports a start before anything that the process does.
        queue_.insert(queue_.begin(), ProcessStarted{a.instance, process, "h"});
        later(SessionOpened{a.instance, process, "e", "", 0, EngineState::kReady, {}});
    }
    void react(const KillProcess& a) { exit(a.instance, a.process, "SIGKILL"); }
    void react(const TerminateProcess& a) {
        if (!lies())
            exit(a.instance, a.process, "SIGTERM");
    }
    void exit(const InstanceName& name, const ProcessRef& process, const std::string& how) {
        if (process)
            later(ProcessExited{name, process, how == "0", how, "log"});
    }
    void react(const SendCommand& a) {
        if (lies())
            return; // never answers
        if (a.kind == CommandKind::kStop)
            return exit(a.instance, state_.instances.at(a.instance).process, "0");
        CommandDone done{a.instance, a.command, std::nullopt, 0, 0, {}};
        if (lies())
            done.error = Error{ErrorCode::kInternal, "no", "Refused", 0};
        if (a.kind == CommandKind::kRestore)
            done.grant_bytes = a.grant_bytes;
        later(done);
    }
    void react(const ConfirmBytes& a) {
        const bool short_figure = lies();
        later(BytesConfirmed{a.instance, short_figure ? 500ULL << 20 : 0});
    }

    Event surprise() {
        std::vector<InstanceName> names;
        for (const auto& [name, i] : state_.instances)
            names.push_back(name);
        const InstanceName name = names.empty() ? InstanceName("x") : names[below(names.size())];
        const OperationId operation("op" + std::to_string(below(100000)));
        const auto found = state_.instances.find(name);
        const ProcessRef process =
            found != state_.instances.end() ? found->second.process : ProcessRef{};
        switch (below(16)) {
        case 0:
        case 1:
        case 2:
            return OperatorPreempt{operation,    name, static_cast<policies::Rung>(below(4)),
                                   std::nullopt, "",   below(5) == 0};
        case 3:
        case 4:
        case 5:
            return OperatorResume{operation, name, "", below(5) == 0};
        case 6:
            return process ? Event(ProcessExited{name, process, below(2) == 0, "gone", "log"})
                           : Event(EngineReport{name, {}});
        case 7:
            return SessionClosed{name};
        case 8:
            return SessionOpened{
                name, process, "e", "", 0, EngineState::kReady, static_cast<EngineHeld>(below(3))};
        case 9:
            return WeightsEvict{operation, WeightSetId(below(2) == 0 ? "a" : "b"), below(5) == 0,
                                below(3) == 0};
        case 10:
            return LoadRequested{ModelName(below(2) == 0 ? "a" : "b"), "", "auto", {}, operation};
        case 11: { // a document goes, or all are back
            policies::Documents some = all_;
            if (below(4) == 0) // limits move
                some.policy->memory.host_tier_bytes = below(3) << 30;
            if (below(4) == 0) {
                some.policy->memory.image_dir = below(2) == 0 ? "" : "/images";
                some.policy->memory.image_limit_bytes = below(4) << 29;
            }
            if (below(2) == 0)
                some.instances.erase(some.instances.begin() +
                                     static_cast<long>(below(some.instances.size())));
            else if (below(2) == 0)
                some.instances[below(some.instances.size())].engine.command.push_back(
                    std::to_string(below(100)));
            return DocumentsApplied{some};
        }
        case 13: {
            const char* set = below(2) == 0 ? "a" : "b";
            return WeightsStale{WeightSetId(set), DeviceId(below(2) == 0 ? "host-0" : "GPU-1"),
                                std::string("/models/") + set, "size"};
        }
        case 14: // what nobody asked for
            if (below(4) == 0)
                return DropFailed{WeightSetId("a"), DeviceId("host-0"),
                                  Error{ErrorCode::kIo, "no", "", 5}};
            return below(2) == 0
                       ? Event(WeightsDropped{WeightSetId("a"), DeviceId("host-tier")})
                       : Event(ImageWritten{LoadId{below(state_.next_id + 1)}, 1ULL << 30});
        case 12:
            return below(2) == 0
                       ? Event(LeaseOpened{
                             LeaseId{below(5)}, WeightSetId("a"), DeviceId("host-0"), "guest", {}})
                       : Event(LeaseClosed{LeaseId{below(5)}});
        default:
            return CommandDone{name, CommandId{below(1000)}, std::nullopt, 0, 0, {}};
        }
    }

    std::mt19937_64 random_;
    policies::Documents all_;
    NodeState state_;
    TimePoint now_{std::chrono::hours(1)};
    std::map<TimerId, TimePoint> timers_;
    std::map<LoadId, LoadKey> loads_;
    std::map<LoadId, WeightSetId> copies_;
    std::vector<Event> queue_;
    std::ostringstream trace_;
    int next_pid_ = 100;
    bool calm_ = false;
};

uint64_t first_seed() {
    const char* text = std::getenv("BERTH_TEST_SEED");
    if (text != nullptr && std::string_view(text) == "random")
        return std::random_device{}();
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

std::string tail(const std::string& trace) {
    return trace.size() > 3000 ? trace.substr(trace.size() - 3000) : trace;
}

} // namespace

TEST(NodeRandom, InvariantsHoldAfterEveryEvent) {
    const uint64_t base = first_seed();
    RecordProperty("seed", std::to_string(base));
    std::string all;
    for (uint64_t seed = base; seed < base + 20; ++seed) {
        World world(seed);
        for (int n = 0; n < 3000; ++n) {
            const std::string wrong = world.step();
            ASSERT_EQ(wrong, "") << "BERTH_TEST_SEED=" << seed << " event " << n << "\n"
                                 << tail(world.trace());
        }
        all += world.trace();
    }
    // The stream reaches what it is there for.
    for (const char* word : {"SendCommand nightly Pause",
                             "SendCommand nightly Restore",
                             "SendCommand nightly Offload",
                             "KillProcess nightly",
                             "TerminateProcess job",
                             "ForgetInstance",
                             "KeepWeights a",
                             "DropWeights",
                             "InsufficientMemory",
                             "EngineDied",
                             "ShortReclaim",
                             "OperationInProgress",
                             "PersistInstance nightly Suspended",
                             "StartCopy a host-0 to host-tier",
                             "StartCopy b host-tier to image",
                             "from host-tier",
                             "from image",
                             "TierFailed",
                             "CheckpointChanged",
                             "Copied",
                             "CopyFailed",
                             "DropFailed",
                             "TidyImages /images",
                             "PersistInstance chat Running",
                             "Decision "})
        EXPECT_NE(all.find(word), std::string::npos) << word << " BERTH_TEST_SEED=" << base;
}

TEST(NodeRandom, NoByteIsLostOnceEverythingIsRemoved) {
    const uint64_t base = first_seed();
    for (uint64_t seed = base; seed < base + 20; ++seed) {
        World world(seed);
        for (int n = 0; n < 1000; ++n)
            ASSERT_EQ(world.step(), "") << "BERTH_TEST_SEED=" << seed;
        ASSERT_EQ(world.calm(std::chrono::hours(1)), "") << "BERTH_TEST_SEED=" << seed;
        policies::Documents none = world.all();
        none.instances.clear();
        ASSERT_EQ(world.give(DocumentsApplied{none}), "");
        ASSERT_EQ(world.calm(std::chrono::hours(1)), "");
        for (uint64_t lease = 0; lease < 5; ++lease)
            ASSERT_EQ(world.give(LeaseClosed{LeaseId{lease}}), "");
        for (const char* set : {"a", "b"})
            ASSERT_EQ(world.give(WeightsEvict{OperationId(std::string("last-") + set),
                                              WeightSetId(set), false, true}),
                      "");
        ASSERT_EQ(world.calm(std::chrono::hours(1)), "");
        EXPECT_TRUE(world.state().instances.empty()) << "BERTH_TEST_SEED=" << seed;
        EXPECT_TRUE(world.state().operations.empty()) << "BERTH_TEST_SEED=" << seed;
        for (const auto& [id, device] : world.state().devices)
            EXPECT_EQ(usage(world.state(), id).used_bytes(), 0U)
                << id << " BERTH_TEST_SEED=" << seed << "\n"
                << tail(world.trace());
    }
}

TEST(NodeRandom, TheSameEventsGiveTheSameActions) {
    const uint64_t seed = first_seed();
    World one(seed), two(seed);
    for (int n = 0; n < 2000; ++n) {
        one.step();
        two.step();
    }
    EXPECT_EQ(one.trace(), two.trace()) << "BERTH_TEST_SEED=" << seed;
}

} // namespace berth::node::test
