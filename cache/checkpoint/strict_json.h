// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <string_view>

// For .cpp files only, as base/json.h.
namespace berth {

// Parses one document and refuses, besides what json::parse refuses, an object that has a key
// twice: a plain parser keeps the last one, so that two readers of one file may see two things.
// Corrupt, with the reason DuplicateKey, names the key.
Result<json::value> parse_strict(std::string_view text, std::string_view what);

} // namespace berth
