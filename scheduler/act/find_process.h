// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"

#include <optional>
#include <string>

namespace berth {

// The process that was started with a token of that hash: one that an earlier berthd had started
// and did not live to write down. Reads what /proc shows of processes of the same user (all, for
// root): a millisecond per hundred of them.
std::optional<ProcessId> find_process_by_token(const std::string& token_sha256);

// Whether a child of an earlier berthd of this node is there which has not yet become its program:
// it has no token to be known by.
bool has_unborn_sibling();

} // namespace berth
