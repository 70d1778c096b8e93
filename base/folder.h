// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <string>
#include <vector>

namespace berth {

// The paths of what lies in a folder, in no order. An error, never an exception, when it cannot be
// read to its end: of a folder on a network that may happen at any entry.
Result<std::vector<std::string>> entries_of(const std::string& folder);

} // namespace berth
