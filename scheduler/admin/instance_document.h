// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/http.h"
#include "policies/spec.h"

#include <string>

// A body that is one document of kind Instance.
namespace berth {

// As the reader of YAML takes it.
Result<std::string> instance_text(const http::Request& request);
// That it is nothing else, and of that name; else InvalidArgument in words.
Status check_is_instance(const policies::Documents& documents, const std::string& name,
                         const std::string& file);

} // namespace berth
