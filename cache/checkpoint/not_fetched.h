// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstddef>
#include <string_view>

namespace berth {

// How much of a file's beginning is enough to tell.
inline constexpr size_t kFirstBytes = 64;

// Refuses what download tools leave in a file's place, by its first bytes: a Git LFS pointer, a web
// page (a login or an error), an archive or another format under the wrong name. `wanted` says what
// the file should be.
Status check_is_fetched(std::string_view first, std::string_view file, std::string_view wanted);

} // namespace berth
