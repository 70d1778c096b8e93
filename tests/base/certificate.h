// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace berth::http {

// A new certificate in `folder`, which signs itself, for 127.0.0.1: "cert.pem" and "key.pem"
// (0600).
struct Certificate {
    explicit Certificate(const std::string& folder);
    std::string certificate_file;
    std::string key_file;
};

} // namespace berth::http
