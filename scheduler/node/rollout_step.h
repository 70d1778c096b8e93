// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/step.h"

#include <optional>
#include <string>
#include <vector>

// Inside scheduler/node/ only: how a rollout goes on. It sees to it which document each process of
// a service is to have, and looks at what became of that; starting, handing over, ending are done
// as for every changed document.
namespace berth::node {

// "NAME is Failed, CrashLoop: ..."
std::string state_words(const Instance& i);
// How long nobody would serve if it were stopped and started again with that document.
std::string gap_words(const NodeState& state, const Instance& i,
                      const policies::InstanceSpec& after);
// Whether a refusal is one for want of room.
bool is_for_room(const std::string& reason);
// What stands by for it by its own document, which a surge has not; nullptr: nobody.
const policies::InstanceSpec* standby_of(const policies::Documents& documents,
                                         const std::string& name);

struct Step::Rolling {
    Step& step;

    // rollout_asked.cpp: what operators want
    void asked(const OperatorRollout& event);
    // rollout_taken_up.cpp: what new documents say of those under way; then they are laid over them
    void take_up(policies::Documents& documents);
    void adopt_again(const InstanceName& name);
    void refused(const DocumentRefused& event);
    // rollout.cpp: looks at all under way; whether one of them has gone on
    bool watch();

  private:
    void begin(OperatorRollout event, Operation operation, bool undoes);
    bool take_at_once(const OperatorRollout& event, Operation& operation, const Instance& i);
    void answer_begun(const Operation& operation, const std::string& before);
    void pause(const OperatorRollout& event, Operation operation, Rollout& r);
    void undo(const OperatorRollout& event, Operation operation, Rollout& r);
    std::optional<Error> refusal(const OperatorRollout& event, const Instance& i) const;
    std::string plan_words(const OperatorRollout& event, const Instance& i) const;

    void take_up(Rollout& r, const policies::Documents& documents,
                 const policies::InstanceSpec& said);
    bool go_on(Rollout& r);
    bool start(Rollout& r);
    bool hand_over(Rollout& r);
    bool follow(Rollout& r);
    bool come_back(Rollout& r);
    bool replace(Rollout& r);
    bool revert(Rollout& r);
    void fail(Rollout& r, const Error& why);
    void go_back(Rollout& r, const std::string& words);
    void complete(Rollout& r, const std::string& words);
    void over(Rollout& r, RolloutPhase phase, const std::string& words);
    void enter(Rollout& r, RolloutPhase phase, const std::string& words);
    void apply(Rollout& r);
    void tell(const Rollout& r, bool warning, const char* reason, const std::string& words);

    Instance* find(const InstanceName& name) const { return step.find(name); }
    const Instance* standby(const Instance& i) const;
    Instance* second(const Rollout& r) const; // who takes the document last
    Instance* who_serves(const Rollout& r) const;
    std::optional<Error> trouble(const InstanceName& name, TimePoint since, bool first) const;
    bool awaits_old(const Rollout& r) const; // who serves is not connected, and may come back
    // Who is new answers otherwise than who serves, though a request means the same to both.
    std::optional<Error> disagreement(const Rollout& r) const;
    std::optional<Error> no_place(const OperatorRollout& event, const Instance& i) const;
    struct Missing {
        DeviceId device;
        DeviceKind kind = DeviceKind::kHost;
        uint64_t bytes = 0;
        uint64_t each = 0; // that each rank of the giver there would have to give
    };
    std::vector<Missing> missing(const Instance& i, const Instance* giver) const;
    std::string missing_words(const Instance& i) const;
    enum class Room { kNone, kComes, kAsked };
    Room make_room(Rollout& r);
};

} // namespace berth::node
