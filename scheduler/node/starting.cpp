// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"
#include "scheduler/node/ranks.h"
#include "scheduler/node/service.h"

#include <algorithm>

// A process that is started where it was placed: what it is granted, and what it leases.
namespace berth::node {

uint64_t Step::grant_size(const Instance& i, const std::vector<Fit>& fits) const {
    uint64_t left = UINT64_MAX;
    for (const Fit& fit : fits) {
        const uint64_t each = i.spec.ranks_each();
        const uint64_t taken = fit.row->claimed_after_bytes + fit.row->overhead_bytes * each;
        left =
            std::min(left, fit.available_bytes > taken ? (fit.available_bytes - taken) / each : 0);
    }
    if (const std::optional<uint64_t> quota = quota_left(s_, i.spec.tenant)) {
        const uint64_t each = *quota / i.spec.grants();
        const uint64_t overhead = fits.front().row->overhead_bytes;
        left = std::min(left, each > overhead ? each - overhead : 0);
    }
    const uint64_t least = grant_bytes_min(i);
    return std::clamp(grant_bytes_whole(left), least,
                      i.floor_only ? least : grant_bytes_max(i.spec));
}

void Step::start_process(Instance& i, Board& board, const std::vector<Fit>& fits) {
    const policies::ModelSpec* model = board.model_of(i);
    cancel_timers(i);
    std::string where;
    for (const DeviceId& device : i.devices)
        where += (where.empty() ? "" : ", ") + device.value;
    i.ranks = i.spec.ranks;
    i.others.clear();
    i.overhead_bytes = fits.front().row->overhead_bytes;
    i.grant_bytes = grant_size(i, fits);
    i.grant_bytes_resume = i.grant_bytes_next = 0;
    i.shrunk_by = HeldBy::kNobody;
    i.grant_state = GrantState::kReserved;
    i.process_alive = true;
    i.process = ProcessRef{};
    i.process_digest = policies::process_digest(i.spec, model);
    i.requests_digest = policies::requests_digest(i.spec, model);
    i.journals = !i.service.empty() && i.spec.engine.journal;
    i.restart_wanted = false;
    i.desired = Desired::kRunning;
    i.held_by = HeldBy::kNobody;
    i.engine_state = EngineState::kUnknown;
    i.phases.clear();
    i.counters = Counters{};
    i.cramped = false;
    i.last_decision.clear();
    ++i.starts;
    if (!i.service.empty() && !i.stands_by)
        begin_generation(i);
    if (model != nullptr) {
        i.weights.clear();
        for (const LoadKey& key : parts_of(i, *model)) {
            const WeightSetId set = resident(s_, key)->id;
            s_.weights.at({key.device, set}).last_used = now_;
            if (i.ranks > 1 || i.weights.empty())
                i.weights.push_back(set);
        }
    }
    enter(i, InstanceState::kStarting, "", "",
          "on " + where + " with a grant of " + format_bytes(i.grant_bytes) +
              (i.ranks > 1 ? " for each of " + std::to_string(i.ranks) + " ranks" : ""));
    arm(i.timer, Timer{Timer::Kind::kStart, i.name, {}}, now_ + i.spec.engine.start_deadline);
    act(StartProcess{i.name, i.spec, model != nullptr ? *model : policies::ModelSpec{}, i.devices,
                     i.grant_bytes, i.ranks, i.starts});
    board.placed(i);
}

} // namespace berth::node
