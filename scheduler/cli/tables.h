// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/output.h"

#include <optional>
#include <string>
#include <string_view>

namespace berth::cli {

// The kinds of things that berthd lists.
enum class Kind { kInstances, kDevices, kWeights, kOperations, kDecisions };

// "instance", "instances"; nothing for another word.
std::optional<Kind> kind_from(std::string_view word);
// "instances": the path under /v1.
std::string_view path_of(Kind kind);

Table table_of(Kind kind, const json::array& items);
// {name, ms} of each phase: an operation's in order, a start's as a map.
Table phases_table(const json::value& phases);

} // namespace berth::cli
