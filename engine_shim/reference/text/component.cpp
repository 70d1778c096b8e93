// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/component.h"

#include <fmt/format.h>

namespace berth::text {

Result<std::string> component_type(const json::value& from, std::string_view role) {
    const json::object* object = from.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    if (type == nullptr || !type->is_string())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: expected an object with a 'type', found {}", role,
                                object == nullptr ? json::kind_name(from) : "none in it"));
    return std::string(to_view(type->get_string()));
}

tl::unexpected<Error> unknown_component(std::string_view role, std::string_view type,
                                        std::string_view known) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} '{}' is not supported (known: {})", role, type, known));
}

Result<Regex> component_pattern(const json::value& from, std::string_view role) {
    const json::object* object = from.if_object();
    if (object != nullptr && object->size() == 1) {
        const auto& [kind, text] = *object->begin();
        if (const auto* pattern = text.if_string()) {
            if (kind == "Regex")
                return Regex::compile(to_view(*pattern));
            if (kind == "String" && !pattern->empty())
                return Regex::literal(to_view(*pattern));
        }
    }
    return fail(ErrorCode::kUnsupported,
                fmt::format(R"({}: expected a pattern as {{"Regex": "..."}} or )"
                            R"({{"String": "..."}}, found {})",
                            role, json::serialize(from)));
}

Result<const json::array*> component_list(const json::value& from, std::string_view field,
                                          std::string_view role) {
    const json::object* object = from.if_object();
    const json::value* list =
        object == nullptr
            ? nullptr
            : object->if_contains(boost::json::string_view(field.data(), field.size()));
    if (list == nullptr || !list->is_array())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} 'Sequence': field '{}': expected a list", role, field));
    return &list->get_array();
}

} // namespace berth::text
