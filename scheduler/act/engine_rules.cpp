// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/engine_desk.h"

#include "base/log.h"
#include "scheduler/act/rank_name.h"

#include <cmath>
#include <tuple>

// What an engine is told of the rules that hold for it: its model, its class and its targets, its
// part in the gate.
namespace berth {

protocol::Welcome EngineDesk::welcome_for(const node::Instance& instance, uint32_t rank,
                                          uint64_t reply_to, int& gate_fd) {
    const node::NodeState& state = context_.state();
    protocol::Welcome welcome;
    welcome.id = reply_to;
    welcome.node = context_.node_name;
    welcome.instance = instance.name.value;
    welcome.model = instance.spec.model;
    if (const policies::ModelSpec* model = state.documents.find_model(instance.spec.model)) {
        welcome.model_path = model->path;
        welcome.dtype = model->dtype;
        welcome.quantization = model->quantization;
    }
    welcome.class_name = instance.spec.class_name;
    welcome.class_value = instance.priority;
    welcome.grant_bytes = instance.grant_bytes;
    welcome.grant_bytes_max = std::max(instance.spec.memory_limit_bytes, instance.grant_bytes);
    if (const auto& slo = instance.spec.slo) {
        const auto microseconds = [](Nanoseconds one) {
            return static_cast<uint64_t>(one.count()) / 1000;
        };
        welcome.slo_ttft_us = microseconds(slo->ttft);
        welcome.slo_tpot_us = microseconds(slo->tpot);
    }
    if (rank >= instance.devices.size())
        return welcome;
    const node::DeviceId& device = instance.devices[rank];
    welcome.device = device.value;
    if (auto found = state.devices.find(device); found != state.devices.end())
        welcome.device_kind = std::string(to_string(found->second.kind));
    const GateFds* gate = context_.gates.find(device);
    if (gate == nullptr)
        return welcome;
    gate_fd = gate->read_only.get();
    const policies::PriorityClass* priority_class =
        state.policy.find_class(instance.spec.class_name);
    const policies::Sharing sharing = state.policy.sharing.compute;
    bool gate_is_used = state.policy.mode == policies::PolicyMode::kEnforce &&
                        (sharing == policies::Sharing::kGate ||
                         (sharing == policies::Sharing::kMps && !context_.mps.ready));
    if (priority_class == nullptr || !priority_class->preempts_lower || !gate_is_used)
        return welcome;
    auto slot = context_.gates.assign(rank_name(instance.name, rank), device);
    if (!slot) {
        context_.note(true, "instance/" + instance.name.value, "NoGateSlot",
                      slot.error().message + ": it does not pause lower classes");
        return welcome;
    }
    welcome.raises_gate = true;
    welcome.gate_slot = *slot;
    gate_fd = gate->writable.get();
    return welcome;
}

void EngineDesk::tell_rules() {
    const policies::SharingSpec& sharing = context_.state().policy.sharing;
    // Under MPS it is a share of the multiprocessors: gates that stand in for it leave no time.
    const bool of_time = sharing.compute != policies::Sharing::kMps;
    context_.gates.set_share(
        sharing.batch_share_by_slo ? kShareBySlo
        : of_time ? static_cast<uint32_t>(std::lround(sharing.batch_share_when_busy * 1000))
                  : 0);
    const auto rules = [](const protocol::Welcome& one) {
        return std::tie(one.class_name, one.class_value, one.raises_gate, one.gate_slot,
                        one.slo_ttft_us, one.slo_tpot_us);
    };
    for (const auto& [name, id] : by_name_) {
        const RankOf of = rank_of(name);
        const auto instance = context_.state().instances.find(of.instance);
        if (instance == context_.state().instances.end())
            continue;
        Session& session = sessions_.at(id);
        int gate_fd = -1;
        protocol::Welcome now = welcome_for(instance->second, of.rank, 0, gate_fd);
        if (rules(now) == rules(session.welcome))
            continue;
        server_.send(id, now, gate_fd >= 0 ? std::vector<int>{gate_fd} : std::vector<int>{});
        session.welcome = std::move(now);
    }
}

} // namespace berth
