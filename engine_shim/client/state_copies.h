// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/client/weight_set.h"

#include <map>
#include <memory>
#include <string_view>

namespace berth {

// One attacher's own copies of a set's states, made from their template: writable, seen by nobody
// else, gone with this object. Tensors that share a storage share its copy. Thread-safe; outlives
// the weight set and the client.
class StateCopies {
  public:
    static Result<std::unique_ptr<StateCopies>> make(Device& device, const WeightSet& weights);

    // The first element of a state's copy; nullptr for a name that is no state.
    std::byte* address(std::string_view name) const;
    uint64_t bytes() const; // of memory taken

  private:
    std::vector<std::unique_ptr<WritableSegment>> segments_;
    std::map<std::string, std::byte*, std::less<>> addresses_;
};

} // namespace berth
