// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/weights/manifest.h"

#include <string>

namespace berth {

// SHA-256 over the list of (name, dtype, shape, checksum) of all tensors, in the manifest's order:
// with every checksum found right, a hash of all bytes. It is made when a set is loaded and kept
// apart from the manifest, so that a manifest that was exchanged with its bytes is found out.
inline constexpr const char* kDeepHashKey = "deep/"; // and the set's id: its record's key
std::string deep_hash(const Manifest& manifest);

} // namespace berth
