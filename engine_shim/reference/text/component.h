// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "engine_shim/reference/text/regex.h"

#include <string>
#include <string_view>

// What the parts of a tokenizer.json have in common: an object with a "type", and patterns.
namespace berth::text {

// The component's "type"; `role` ("normalizer") names it in the error.
Result<std::string> component_type(const json::value& from, std::string_view role);
// "normalizer 'BertNormalizer' is not supported (known: NFC, ...)".
tl::unexpected<Error> unknown_component(std::string_view role, std::string_view type,
                                        std::string_view known);
// {"String": "..."} or {"Regex": "..."}.
Result<Regex> component_pattern(const json::value& from, std::string_view role);
// The elements of a Sequence, under the given field.
Result<const json::array*> component_list(const json::value& from, std::string_view field,
                                          std::string_view role);

inline std::string_view to_view(const boost::json::string& text) {
    return {text.data(), text.size()};
}

} // namespace berth::text
