// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace berth::protocol {

// The fingerprint document of a set that an engine has published says so: {"published": true, ...}.
// Such a set answers no path and no Model, whatever it was made from: it is asked for by its id.
inline constexpr std::string_view kPublishedField = "published";
bool is_published_document(std::string_view fingerprint_json);

} // namespace berth::protocol
