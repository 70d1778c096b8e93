// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <map>
#include <string>

// For .cpp files only, as base/json.h.
namespace berth {

// One form for equal documents: keys in ascending order of bytes, no spaces.
std::string canonical_json(const json::value& from);

// Every scalar under its dotted name: {"a": {"b": 1}} is {"a.b": "1"}. An array's element goes by
// its "name" where it has one, else by its index.
std::map<std::string, std::string> flatten(const json::value& from);

} // namespace berth
