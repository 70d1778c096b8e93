// SPDX-License-Identifier: Apache-2.0
#include "policies/yaml.h"
#include "scheduler/node/rollout_step.h"

#include <algorithm>

// Which document each process of a service is to have while a rollout is under way.
namespace berth::node {

namespace {

constexpr std::string_view kSurgeSuffix = "~next";

bool takes_new(const Rollout& r, const std::string& name) {
    switch (r.phase) {
    case RolloutPhase::kStarting:
    case RolloutPhase::kReady:
        return name == r.first.value;
    case RolloutPhase::kReverting:
    case RolloutPhase::kFailed:
    case RolloutPhase::kUndone:
        return false;
    default:
        return true;
    }
}

void lay(const Rollout& r, policies::Documents& documents) {
    auto& all = documents.instances;
    const auto of = std::ranges::find(all, r.instance.value, &policies::InstanceSpec::name);
    if (of == all.end())
        return;
    *of = takes_new(r, of->name) ? r.after : r.before;
    const InstanceName surge = surge_name(r.instance);
    std::erase_if(all, [&](const auto& one) { return one.name == surge.value; });
    for (policies::InstanceSpec& one : all) {
        if (one.standby_of != r.instance.value || !r.standby || r.standby->name != one.name)
            continue;
        policies::InstanceSpec own = *r.standby;
        if (own.devices == r.said.devices) // it has none of its own
            own.devices.clear();
        one = policies::standby_for(own, takes_new(r, one.name) ? r.after : r.before);
    }
    if (!r.surge || !r.surge_stays)
        return;
    policies::InstanceSpec own;
    own.name = surge.value;
    own.standby_of = r.instance.value;
    own.origin = r.after.origin;
    all.push_back(policies::standby_for(own, r.after));
}

} // namespace

InstanceName surge_name(const InstanceName& of) {
    return InstanceName(of.value + std::string(kSurgeSuffix));
}

bool gives_room(const Rollouts& rollouts, const InstanceName& name) {
    const auto found = rollouts.find(name);
    return found != rollouts.end() && found->second.made_room &&
           found->second.phase == RolloutPhase::kStarting;
}

const policies::InstanceSpec* standby_of(const policies::Documents& documents,
                                         const std::string& name) {
    for (const policies::InstanceSpec& one : documents.instances)
        if (one.standby_of == name && !is_surge(InstanceName(one.name)))
            return &one;
    return nullptr;
}

bool is_surge(const InstanceName& name) {
    return name.value.ends_with(kSurgeSuffix);
}

void lay_rollouts(const Rollouts& rollouts, policies::Documents& documents) {
    for (const auto& [name, r] : rollouts)
        if (r.is_under_way() || (r.phase == RolloutPhase::kComplete && !r.adopted))
            lay(r, documents);
        else // what of it is left in documents that were laid before
            std::erase_if(documents.instances, [surge = surge_name(name)](const auto& one) {
                return one.name == surge.value;
            });
}

} // namespace berth::node
