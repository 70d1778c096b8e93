// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"
#include "scheduler/wire/system_names.h"

#include <string>
#include <vector>

namespace berth {

// What a tenant's sessions may attach to: an instance's tenant is the one that its document names,
// anyone else's are those that list the session's user (by name or number). Who belongs to no
// tenant is not restricted by tenants; who belongs to several has what any of them has.
//
// Thread rule: the decision thread. The users' names are looked up once a minute at most.
class TenantGate {
  public:
    struct Who {
        node::InstanceName instance; // empty: a guest
        uint32_t uid = 0;
    };
    // PermissionDenied, TenantRefused: whose tenant may attach to what, and where that is changed.
    // `path` is the checkpoint's folder; `model` names what has none, since an engine published it.
    Status allows(const node::NodeState& state, const Who& who, const std::string& path,
                  const std::string& model);

  private:
    std::vector<const policies::TenantSpec*> tenants_of(const node::NodeState& state,
                                                        const Who& who);

    SystemNames names_;
};

} // namespace berth
