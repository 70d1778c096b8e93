// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>
#include <vector>

// Inside policies/ only: one sentence for each field, shown by editors. A test holds them against
// the readers: none may be missing, none may be left over.
namespace berth::policies {

// `path` begins with the kind ("Instance.spec.slo.ttft", "ColocationPolicy.spec.triggers[].above"),
// but for the fields that every document has ("metadata.name"). Empty: not described.
std::string_view field_words(std::string_view path);
const std::vector<std::pair<std::string_view, std::string_view>>& all_field_words();

} // namespace berth::policies
