// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "scheduler/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

// One JSON value as JSON, as YAML, and as lines for people.
namespace berth::cli {

namespace {

bool is_empty(const json::value& value) {
    return (value.is_object() && value.get_object().empty()) ||
           (value.is_array() && value.get_array().empty());
}

// Numbers as people write them: the library's own way of 0.5 is 5E-1.
std::string scalar_json(const json::value& value) {
    if (value.is_double() && std::isfinite(value.get_double()))
        return fmt::format("{}", value.get_double());
    return json::serialize(value);
}

void write_compact(const json::value& value, std::string& text) {
    std::string_view separator;
    if (const auto* object = value.if_object()) {
        text += '{';
        for (const auto& [name, field] : *object) {
            text += separator;
            text += json::serialize(json::value(name)) + ":";
            write_compact(field, text);
            separator = ",";
        }
        text += '}';
    } else if (const auto* array = value.if_array()) {
        text += '[';
        for (const json::value& element : *array) {
            text += separator;
            write_compact(element, text);
            separator = ",";
        }
        text += ']';
    } else {
        text += scalar_json(value);
    }
}

void write_json(const json::value& value, const std::string& indent, std::string& text) {
    if (is_empty(value) || value.is_primitive()) {
        text += is_empty(value) ? json::serialize(value) : scalar_json(value);
        return;
    }
    std::string deeper = indent + "  ";
    std::string separator = "\n";
    if (const auto* object = value.if_object()) {
        text += '{';
        for (const auto& [name, field] : *object) {
            text += separator + deeper + json::serialize(json::value(name)) + ": ";
            write_json(field, deeper, text);
            separator = ",\n";
        }
        text += '\n' + indent + '}';
        return;
    }
    text += '[';
    for (const json::value& element : value.get_array()) {
        text += separator + deeper;
        write_json(element, deeper, text);
        separator = ",\n";
    }
    text += '\n' + indent + ']';
}

// Words that need no quotes in any YAML reader; all else is quoted as JSON, which YAML reads.
bool is_plain(std::string_view text) {
    if (text.empty() || std::isalpha(static_cast<uint8_t>(text.front())) == 0 || text.back() == ':')
        return false;
    bool safe = std::all_of(text.begin(), text.end(), [](char c) {
        return std::isalnum(static_cast<uint8_t>(c)) != 0 ||
               std::string_view("_-./").find(c) != std::string_view::npos;
    });
    std::string lower(text);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return static_cast<char>(std::tolower(static_cast<uint8_t>(c))); });
    for (const char* word : {"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
        safe = safe && lower != word;
    return safe;
}

std::string yaml_scalar(const json::value& value) {
    if (value.is_string() && is_plain(std::string_view(value.get_string())))
        return std::string(std::string_view(value.get_string()));
    return is_empty(value) ? json::serialize(value) : scalar_json(value);
}

void write_yaml(const json::value& value, const std::string& indent, bool in_list,
                std::string& text) {
    std::string lead = in_list ? "" : indent;
    if (const auto* object = value.if_object()) {
        for (const auto& [name, field] : *object) {
            text += lead + yaml_scalar(json::value(name)) + ":";
            lead = indent;
            if (is_empty(field) || field.is_primitive()) {
                text += " " + yaml_scalar(field) + "\n";
                continue;
            }
            text += "\n";
            write_yaml(field, indent + "  ", false, text);
        }
        return;
    }
    for (const json::value& element : value.get_array()) {
        text += lead + "- ";
        lead = indent;
        if (is_empty(element) || element.is_primitive())
            text += yaml_scalar(element) + "\n";
        else
            write_yaml(element, indent + "  ", true, text);
    }
}

// "grantBytesMax" -> "Grant bytes max".
std::string title_of(std::string_view field) {
    std::string title;
    for (char c : field) {
        bool upper = std::isupper(static_cast<uint8_t>(c)) != 0;
        if (upper)
            title += ' ';
        title += static_cast<char>(title.empty() ? std::toupper(static_cast<uint8_t>(c))
                                                 : std::tolower(static_cast<uint8_t>(c)));
    }
    return title;
}

bool is_bytes(std::string_view field) {
    return field.starts_with("bytes") || field.find("Bytes") != std::string_view::npos;
}

std::string scalar_text(std::string_view field, const json::value& value, bool of_phases) {
    if (value.is_null())
        return "-";
    if (value.is_string())
        return value.get_string().empty() ? "-" : std::string(std::string_view(value.get_string()));
    if (value.is_bool())
        return value.get_bool() ? "yes" : "no";
    if (value.is_number()) {
        if (is_bytes(field) && !value.is_double())
            return format_bytes(value.to_number<uint64_t>());
        if (of_phases || field == "ms" || field.ends_with("Ms"))
            return milliseconds_text(value.to_number<double>());
    }
    return scalar_json(value);
}

void describe_into(const json::object& object, const std::string& indent, bool of_phases,
                   std::string& text) {
    size_t width = 0;
    for (const auto& field : object)
        width =
            std::max(width, (of_phases ? std::string(field.key()) : title_of(field.key())).size());
    for (const auto& [key, value] : object) {
        std::string name = of_phases ? std::string(key) : title_of(key);
        if (value.is_primitive() || is_empty(value)) {
            std::string shown = is_empty(value) ? "-" : scalar_text(key, value, of_phases);
            text += fmt::format("{}{:<{}}  {}\n", indent, name + ":", width + 1, shown);
            continue;
        }
        text += fmt::format("{}{}:\n", indent, name);
        bool phases = std::string_view(key) == "phases";
        if (const auto* inner = value.if_object()) {
            describe_into(*inner, indent + "  ", phases, text);
            continue;
        }
        for (const json::value& element : value.get_array()) {
            std::string line;
            if (const auto* fields = element.if_object()) {
                for (const auto& [inner_key, inner] : *fields)
                    if (inner.is_primitive() && scalar_text(inner_key, inner, false) != "-")
                        line += (line.empty() ? "" : "  ") + scalar_text(inner_key, inner, false);
                    else if (std::string_view(inner_key) == "phases" && inner.is_object())
                        for (const auto& [phase, ms] : inner.get_object())
                            line += fmt::format("  {} {}", std::string_view(phase),
                                                scalar_text(phase, ms, true));
            } else {
                line = scalar_text(key, element, false);
            }
            text += indent + "  " + line + "\n";
        }
    }
}

} // namespace

std::string pretty_json(const json::value& value) {
    std::string text;
    write_json(value, "", text);
    return text + "\n";
}

std::string compact_json(const json::value& value) {
    std::string text;
    write_compact(value, text);
    return text;
}

std::string yaml_text(const json::value& value) {
    if (value.is_primitive() || is_empty(value))
        return yaml_scalar(value) + "\n";
    std::string text;
    write_yaml(value, "", false, text);
    return text;
}

std::string described(const json::object& object) {
    std::string text;
    describe_into(object, "", false, text);
    return text;
}

} // namespace berth::cli
