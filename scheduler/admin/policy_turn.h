// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/admin/admin_api.h"

// For the files of AdminApi that change documents only.
namespace berth {

// One change of the documents at a time, from its preparation until it is stored and holds: made
// when `policy_busy_` is false, on the decision thread.
class AdminApi::PolicyTurn {
  public:
    explicit PolicyTurn(AdminApi& api) : api_(api) { api_.policy_busy_ = true; }
    PolicyTurn(const PolicyTurn&) = delete;
    PolicyTurn& operator=(const PolicyTurn&) = delete;
    ~PolicyTurn() {
        api_.policy_busy_ = false;
        api_.policy_free_.notify();
    }

  private:
    AdminApi& api_;
};

} // namespace berth
