// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <vector>

namespace berth::engine {

// What the blocks of one sequence held, kept in another place. Destruction forgets it. Engine
// thread only.
class SavedKv {
  public:
    SavedKv() = default;
    SavedKv(const SavedKv&) = delete;
    SavedKv& operator=(const SavedKv&) = delete;
    virtual ~SavedKv() = default;
    // Fills the first of these blocks, as many as were saved; waits until it is done.
    virtual Status bring_back(const std::vector<uint32_t>& blocks) const = 0;
};

} // namespace berth::engine
