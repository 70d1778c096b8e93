// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/canonical_json.h"

#include <string_view>

namespace berth {

namespace {

void write(const json::value& from, std::string& to) {
    if (const json::array* array = from.if_array()) {
        to += '[';
        bool first = true;
        for (const json::value& element : *array) {
            if (!std::exchange(first, false))
                to += ',';
            write(element, to);
        }
        to += ']';
        return;
    }
    const json::object* object = from.if_object();
    if (object == nullptr) {
        to += json::serialize(from);
        return;
    }
    std::map<std::string_view, const json::value*> sorted;
    for (const auto& [key, value] : *object)
        sorted.emplace(std::string_view(key.data(), key.size()), &value);
    to += '{';
    bool first = true;
    for (const auto& [key, value] : sorted) {
        if (!std::exchange(first, false))
            to += ',';
        to += json::serialize(json::value(boost::json::string_view(key.data(), key.size())));
        to += ':';
        write(*value, to);
    }
    to += '}';
}

std::string element_name(const json::value& element, size_t index) {
    const json::object* object = element.if_object();
    const json::value* name = object != nullptr ? object->if_contains("name") : nullptr;
    if (name != nullptr && name->is_string())
        return std::string(std::string_view(name->get_string()));
    return std::to_string(index);
}

void flatten_into(const json::value& from, const std::string& name,
                  std::map<std::string, std::string>& to) {
    std::string prefix = name.empty() ? name : name + ".";
    if (const json::object* object = from.if_object()) {
        for (const auto& [key, value] : *object)
            flatten_into(value, prefix + std::string(std::string_view(key)), to);
    } else if (const json::array* array = from.if_array()) {
        for (size_t index = 0; index < array->size(); ++index)
            flatten_into((*array)[index], prefix + element_name((*array)[index], index), to);
    } else if (const auto* text = from.if_string()) {
        to[name] = std::string_view(*text);
    } else {
        to[name] = json::serialize(from);
    }
}

} // namespace

std::string canonical_json(const json::value& from) {
    std::string text;
    write(from, text);
    return text;
}

std::map<std::string, std::string> flatten(const json::value& from) {
    std::map<std::string, std::string> fields;
    flatten_into(from, "", fields);
    return fields;
}

} // namespace berth
