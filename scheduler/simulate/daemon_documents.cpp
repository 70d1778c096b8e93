// SPDX-License-Identifier: Apache-2.0
// What a simulated daemon does to its documents by itself.
#include "policies/yaml.h"
#include "scheduler/simulate/daemon.h"

#include <algorithm>

namespace berth::simulate {

// As scheduler/admin/rollout_routes.cpp does: what was applied meanwhile goes before it.
void Daemon::adopt_document(const policies::InstanceSpec& spec) {
    const std::string what = "adoption " + std::to_string(++adoptions_);
    stage_.after(stage_.dice.of(what).ms(1, 60), [this, spec, what, life = lives_] {
        if (!up_ || life != lives_)
            return;
        const node::InstanceName name(spec.name);
        policies::Documents documents = documents_;
        const auto rollout = state_.rollouts.find(name);
        const auto now =
            std::ranges::find(documents.instances, spec.name, &policies::InstanceSpec::name);
        if (rollout == state_.rollouts.end() || now == documents.instances.end() ||
            !(*now == rollout->second.before))
            return;
        *now = spec;
        Status held = policies::check_documents(documents);
        if (stage_.fault(what + " is refused", 200))
            held = fail(ErrorCode::kUnavailable, "the disk is slow", "StoreSlow");
        if (held)
            apply(std::move(documents));
        else
            post(node::DocumentRefused{name, held.error()});
    });
}

} // namespace berth::simulate
