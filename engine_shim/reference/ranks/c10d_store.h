// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/ranks/rank_store.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace berth::engine {

// What open_rank_store() gives, for those who hand it to torch's process groups.
class C10dStore : public RankStore {
  public:
    virtual const c10::intrusive_ptr<c10d::Store>& store() const = 0;
};

} // namespace berth::engine
