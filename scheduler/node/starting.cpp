// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"
#include "scheduler/node/service.h"

#include <algorithm>

// A process that is started where it was placed: what it is granted, and what it leases.
namespace berth::node {

uint64_t Step::grant_size(const Instance& i, const std::vector<Fit>& fits) const {
    uint64_t left = UINT64_MAX;
    for (const Fit& fit : fits) {
        const uint64_t taken = fit.row->claimed_after_bytes + fit.row->overhead_bytes;
        left = std::min(left, fit.available_bytes > taken ? fit.available_bytes - taken : 0);
    }
    if (const std::optional<uint64_t> quota = quota_left(s_, i.spec.tenant)) {
        const uint64_t each = *quota / i.spec.device_count;
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
    i.devices.clear();
    std::string where;
    for (const Fit& fit : fits) {
        i.devices.push_back(fit.row->device->id);
        where += (where.empty() ? "" : ", ") + fit.row->device->id.value;
    }
    i.overhead_bytes = fits.front().row->overhead_bytes;
    i.grant_bytes = grant_size(i, fits);
    i.grant_bytes_resume = i.grant_bytes_next = 0;
    i.shrunk_by = HeldBy::kNobody;
    i.grant_state = GrantState::kReserved;
    i.process_alive = true;
    i.process = ProcessRef{};
    i.process_digest = policies::process_digest(i.spec, model);
    i.restart_wanted = false;
    i.desired = Desired::kRunning;
    i.held_by = HeldBy::kNobody;
    i.engine_state = EngineState::kUnknown;
    i.phases.clear();
    i.counters = Counters{};
    i.last_decision.clear();
    ++i.starts;
    if (!i.service.empty() && !i.stands_by)
        begin_generation(i);
    if (model != nullptr) {
        const WeightSet* set = resident(s_, load_key(*model, i.devices.front()));
        i.weights = set->id;
        for (const DeviceId& device : i.devices)
            if (const auto here = s_.weights.find({device, set->id}); here != s_.weights.end())
                here->second.last_used = now_;
    }
    enter(i, InstanceState::kStarting, "", "",
          "on " + where + " with a grant of " + format_bytes(i.grant_bytes));
    arm(i.timer, Timer{Timer::Kind::kStart, i.name, {}}, now_ + i.spec.engine.start_deadline);
    act(StartProcess{i.name, i.spec, model != nullptr ? *model : policies::ModelSpec{}, i.devices,
                     i.grant_bytes});
    board.placed(i);
}

} // namespace berth::node
