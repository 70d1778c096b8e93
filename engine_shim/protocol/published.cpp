// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/protocol/published.h"

#include "base/json.h"

namespace berth::protocol {

bool is_published_document(std::string_view fingerprint_json) {
    auto document = json::parse(fingerprint_json, "the fingerprint");
    if (!document || !document->is_object())
        return false;
    const json::value* published = document->get_object().if_contains(
        boost::json::string_view(kPublishedField.data(), kPublishedField.size()));
    return published != nullptr && published->is_bool() && published->get_bool();
}

} // namespace berth::protocol
