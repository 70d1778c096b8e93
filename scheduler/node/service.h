// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"

#include <vector>

// Inside scheduler/node/ only: pairs that answer one socket (`engine.listen`, `standbyOf`).
namespace berth::node {

// By whose name it answers a socket that outlives it; empty: it answers none.
std::string service_of(const policies::InstanceSpec& spec);
// Who stands by for it, the readiest; of one that stands by, who answers. nullptr: it is alone.
Instance* twin_of(NodeState& state, const Instance& i);
const Instance* twin_of(const NodeState& state, const Instance& i);
// Its code still runs, as far as is known.
inline bool may_act(const Instance& i) {
    return i.process_alive && !i.dying;
}
// And it has not let go of its socket.
inline bool may_answer(const Instance& i) {
    return may_act(i) && i.engine_state != EngineState::kDraining;
}
// Stands by, warm: it can answer the socket at once.
inline bool is_warm(const Instance& i) {
    return i.stands_by && i.state == InstanceState::kRunning && may_answer(i) && !i.remove_wanted &&
           !i.restart_wanted;
}
// It answers, and others of its service have done so before it: requests may be in flight.
inline bool has_taken_over(const Instance& i) {
    return i.serves_since && i.generation > 1;
}
// When a process of it may be started: not before its back-off is over, nor while the one that it
// stands by for has just begun to answer.
TimePoint start_at(const NodeState& state, const Instance& i);
// in_flight.cpp: what one that has a successor leaves to it.
HandOver hand_over_of(const NodeState& state, const Instance& i);
// Once its process is told to end.
Nanoseconds end_grace(const NodeState& state, const Instance& i);
// No process of theirs journals, and none is to: said once, for what was journaled before.
bool is_newly_unkept(NodeState& state, const std::vector<Instance*>& all);
// Its process ends, or has ended. Was that soon after it had begun to answer? True where it may be
// the first of a row of such ends.
bool note_end(NodeState& state, Instance& i, TimePoint now);
// Before a next one begins: how many in a row have ended so, if what is in flight is likely the
// cause and is to be forgotten; else 0.
uint32_t take_poisoned(NodeState& state, const Instance& next);
// No process of theirs will come that could go on with what is in flight; said once.
bool is_newly_over(NodeState& state, const std::vector<Instance*>& all);
// What an engine needs at least (0: it does not say), for all of its service: they are the same.
void learn_least(NodeState& state, const Instance& i, uint64_t bytes);
// Its process is to end. Somebody will go on with what that leaves: a twin, or its own next
// process, which comes by itself.
bool has_successor(const NodeState& state, const Instance& i);
// An operator has promoted the one that stands by for it, and that does not answer yet.
bool gives_way(const NodeState& state, const Instance& i);
bool promotes(const NodeState& state, const Instance& i); // it is the one
// Why it has to wait with the restart that its document asks for; empty: it need not.
std::string wait_for_twin(const NodeState& state, const Instance& i);

} // namespace berth::node
