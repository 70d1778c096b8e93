// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/limits.h"
#include "scheduler/node/service.h"

#include <algorithm>
#include <utility>

// Requests in flight go on in the next process. One that ends each process which goes on with it
// must not end them all, and where no next process comes its client must not wait for ever.
namespace berth::node {

namespace {

// A Unix socket's connections are not kept: the kernel does not count their bytes.
bool keeps_requests(const policies::InstanceSpec& spec) {
    return spec.engine.journal && !spec.engine.listen.starts_with("unix:");
}

} // namespace

// What its process has counts, not what its document says by now. The next one's own word tells
// whether requests mean the same to it. One that is not there yet looks itself; if its document may
// change that, they are given time first.
HandOver hand_over_of(const NodeState& state, const Instance& i) {
    const Instance* twin = twin_of(state, i);
    const bool is_there = twin != nullptr && is_warm(*twin);
    const bool is_kept = i.journals && keeps_requests(is_there ? twin->spec : i.spec) &&
                         (is_there ? twin->journals : service_of(i.spec) == i.service);
    if (!is_kept)
        return HandOver::kSocket;
    const bool means_the_same =
        is_there ? !i.identity.empty() && i.identity == twin->identity
                 : i.requests_digest ==
                       policies::requests_digest(i.spec, state.documents.find_model(i.spec.model));
    return means_the_same ? HandOver::kRequests
           : is_there     ? HandOver::kConnections
                          : HandOver::kLate;
}

Nanoseconds end_grace(const NodeState& state, const Instance& i) {
    const Nanoseconds grace = state.policy.preemption.grace_period;
    return has_successor(state, i) ? std::max(grace, kHandOverTime) : grace;
}

bool is_newly_unkept(NodeState& state, const std::vector<Instance*>& all) {
    ServiceRecord& service = state.services[all.front()->service];
    for (const Instance* i : all)
        service.journal = service.journal || i->journals;
    if (!service.journal || std::any_of(all.begin(), all.end(), [](const Instance* i) {
            return i->spec.engine.journal || (i->process_alive && i->journals);
        }))
        return false;
    for (Instance* i : all)
        i->journals = false;
    service.journal = false;
    return true;
}

bool note_end(NodeState& state, Instance& i, TimePoint now) {
    if (i.service.empty() || !i.serves_since)
        return false;
    const bool by_itself = i.state == InstanceState::kRunning && i.desired == Desired::kRunning &&
                           !i.restart_wanted && !i.remove_wanted;
    const bool soon = now - *i.serves_since < kSteadyTime;
    uint32_t& ends = state.services[i.service].quick_ends;
    if (by_itself)
        ends = soon ? ends + 1 : 1;
    else if (!soon)
        ends = 0;
    i.serves_since.reset(); // an end is counted once
    return by_itself && ends == 1;
}

uint32_t take_poisoned(NodeState& state, const Instance& next) {
    ServiceRecord& service = state.services[next.service];
    const uint32_t ends = service.quick_ends;
    if (ends < kQuickEndsMax)
        return 0;
    service.quick_ends = 0;
    return ends;
}

bool is_newly_over(NodeState& state, const std::vector<Instance*>& all) {
    ServiceRecord& service = state.services[all.front()->service];
    const auto rollout = state.rollouts.find(InstanceName(all.front()->service));
    const bool goes_back = rollout != state.rollouts.end() && rollout->second.is_under_way();
    const bool over = !goes_back && std::all_of(all.begin(), all.end(), [](const Instance* i) {
        return !i->process_alive &&
               (i->state == InstanceState::kFailed || i->state == InstanceState::kSucceeded);
    });
    if (!over)
        service.in_flight = true; // somebody may answer
    return over && std::exchange(service.in_flight, false);
}

} // namespace berth::node
