// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/spec.h"

#include <string>
#include <vector>

namespace berth::policies {

// One field that two sets of documents have differently. Values are as the effective YAML has
// them; "" on the side that does not have it.
struct FieldChange {
    std::string document; // "ColocationPolicy", "Node", "Model/NAME", "Instance/NAME"
    std::string field;    // "spec.priorityClasses[batch].value"; "" for the whole document
    std::string before;
    std::string after;
    bool operator==(const FieldChange&) const = default;
};
struct Difference {
    std::vector<FieldChange> changes; // in the order of the documents after, then those that leave
    std::vector<std::string> added, removed; // instances
    std::vector<std::string> restarted;      // instances whose process must be another one
};

// What changes from one to the other. Pure. It compares what effective_yaml prints, so no field
// can be forgotten here. Both are checked documents.
Difference difference_between(const Documents& before, const Documents& after);

} // namespace berth::policies
