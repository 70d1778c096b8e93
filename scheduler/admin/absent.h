// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/http.h"
#include "policies/yaml.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace berth {

// 404, with the nearest name that is there. `all` maps names to things.
template <typename Map>
http::Response absent(const Map& all, std::string_view kind, const std::string& name,
                      std::string_view reason) {
    std::vector<std::string> known;
    for (const auto& [id, one] : all)
        known.push_back(id.value);
    const std::string near = policies::nearest_name(name, known);
    return http::error_response(
        Error{ErrorCode::kNotFound,
              fmt::format("no {} is named '{}'{}", kind, name,
                          near.empty() ? "" : fmt::format("; did you mean '{}'?", near)),
              std::string(reason), 0});
}

} // namespace berth
