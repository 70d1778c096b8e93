// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/config_fields.h"

#include "cache/checkpoint/fault.h"

#include <fmt/format.h>

#include <cmath>

namespace berth {

const json::value* Fields::find(std::string_view name) const {
    const json::value* found = object_.if_contains({name.data(), name.size()});
    return found != nullptr && found->is_null() ? nullptr : found;
}

uint64_t Fields::whole(std::string_view name, const json::value& found, uint64_t min, uint64_t max,
                       uint64_t fallback) {
    boost::json::error_code error;
    auto number = found.to_number<uint64_t>(error);
    if (error || found.is_double() || number < min || number > max) {
        bad(name, json::serialize(found), fmt::format("a whole number from {} to {}", min, max));
        return fallback;
    }
    return number;
}

uint64_t Fields::size(std::string_view name, uint64_t fallback, bool required, uint64_t max) {
    const json::value* found = find(name);
    if (found != nullptr)
        return whole(name, *found, 1, max, fallback);
    if (required)
        bad(name, "nothing", "a whole number above zero");
    return fallback;
}

uint64_t Fields::count(std::string_view name, uint64_t fallback, uint64_t max) {
    const json::value* found = find(name);
    return found == nullptr ? fallback : whole(name, *found, 0, max, fallback);
}

uint64_t Fields::size_or_null(std::string_view name, uint64_t max) {
    if (const json::value* found = find(name))
        return whole(name, *found, 0, max, 0);
    if (!object_.contains({name.data(), name.size()}))
        bad(name, "nothing", "a whole number, or null where the model has none");
    return 0;
}

double Fields::number(std::string_view name, double fallback) {
    const json::value* found = find(name);
    if (found == nullptr)
        return fallback;
    boost::json::error_code error;
    auto number = found->to_number<double>(error);
    if (error || !std::isfinite(number)) {
        bad(name, json::serialize(*found), "a number");
        return fallback;
    }
    return number;
}

bool Fields::flag(std::string_view name, bool fallback) {
    const json::value* found = find(name);
    if (found == nullptr)
        return fallback;
    if (!found->is_bool()) {
        bad(name, json::serialize(*found), "true or false");
        return fallback;
    }
    return found->get_bool();
}

std::string Fields::text(std::string_view name) {
    const json::value* found = find(name);
    if (found == nullptr)
        return {};
    if (!found->is_string()) {
        bad(name, json::serialize(*found), "a string");
        return {};
    }
    return std::string(std::string_view(found->get_string()));
}

std::vector<int64_t> Fields::ids(std::string_view name) {
    const json::value* found = find(name);
    std::vector<int64_t> ids;
    if (found == nullptr)
        return ids;
    json::array one;
    if (!found->is_array())
        one.push_back(*found);
    for (const json::value& entry : found->is_array() ? found->get_array() : one) {
        if (!entry.is_int64()) {
            bad(name, json::serialize(*found), "a whole number or a list of them");
            break;
        }
        ids.push_back(entry.get_int64());
    }
    return ids;
}

void Fields::bad(std::string_view field, std::string_view found, std::string_view expected) {
    if (!fault_)
        fault_ = fail_fault({"BadConfig", shown_, "", fmt::format("field '{}': {}", field, found),
                             expected, "correct the field, or download the file again"})
                     .value();
}

Status Fields::finish() const {
    if (fault_)
        return fail(*fault_);
    return {};
}

} // namespace berth
