// SPDX-License-Identifier: Apache-2.0
// A JSON Schema out of what the readers ask for.
#include "base/json.h"
#include "policies/field_words.h"
#include "policies/shape.h"
#include "policies/yaml.h"

#include <algorithm>
#include <charconv>

namespace berth::policies {

namespace {

constexpr const char* kBytesPattern =
    R"(^(0|[1-9][0-9]*)(\.[0-9]+)?(Ti|Gi|Mi|Ki|T|G|M|K|k)$|^0$|^[1-9][0-9]*$)";
constexpr const char* kDurationPattern = R"(^0$|^([0-9]+(\.[0-9]+)?(h|m|s|ms|us|ns))+$)";
constexpr const char* kPercentagePattern = R"(^(100|[0-9]{1,2})(\.[0-9]+)?%$)";
constexpr const char* kNamePattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$";

json::array strings(const std::vector<std::string>& texts) {
    return json::array(texts.begin(), texts.end());
}

// Text may look like a number or a boolean to YAML; the reader takes it as text all the same.
json::array scalar_types() {
    return {"string", "number", "boolean"};
}

json::object of_pattern(const char* pattern) {
    return {{"type", "string"}, {"pattern", pattern}};
}

json::object object_of(const Shape& shape, const std::string& path);

json::object number_of(const Form& form) {
    const bool whole = form.kind == Form::Kind::kInteger;
    const auto bound = [whole](double value) {
        return whole ? json::value(static_cast<int64_t>(value)) : json::value(value);
    };
    json::object out{{"type", whole ? "integer" : "number"}};
    if (form.least)
        out[whole ? "minimum" : "exclusiveMinimum"] = bound(*form.least);
    if (form.most)
        out["maximum"] = bound(*form.most);
    return out;
}

json::object form_schema(const Form& form, const std::string& path) {
    switch (form.kind) {
    case Form::Kind::kText:
        return {{"type", scalar_types()}, {"minLength", 1}};
    case Form::Kind::kName:
        return {{"type", json::array{"string", "number"}}, {"pattern", kNamePattern}};
    case Form::Kind::kBoolean:
        return {{"type", "boolean"}};
    case Form::Kind::kInteger:
    case Form::Kind::kNumber:
        return number_of(form);
    case Form::Kind::kBytes:
        return {{"anyOf", json::array{of_pattern(kBytesPattern),
                                      json::object{{"type", "integer"}, {"minimum", 0}}}}};
    case Form::Kind::kDuration:
        return {{"anyOf", json::array{of_pattern(kDurationPattern), json::object{{"const", 0}}}}};
    case Form::Kind::kPercentage:
        return of_pattern(kPercentagePattern);
    case Form::Kind::kWord:
        return {{"enum", strings(form.words)}};
    case Form::Kind::kWords:
        return {{"type", "array"},
                {"items", json::object{{"enum", strings(form.words)}}},
                {"uniqueItems", true}};
    case Form::Kind::kTexts: {
        json::object out{{"type", "array"}, {"items", json::object{{"type", scalar_types()}}}};
        if (form.items_min > 0)
            out["minItems"] = form.items_min;
        return out;
    }
    case Form::Kind::kMap:
        return object_of(*form.inner, path);
    case Form::Kind::kMaps:
        return {{"type", "array"}, {"items", object_of(*form.inner, path + "[]")}};
    case Form::Kind::kDictionary:
        return {{"type", "object"},
                {"additionalProperties", json::object{{"type", scalar_types()}}}};
    }
    return {};
}

// The default as an editor would write it.
json::value fallback_value(const FieldShape& field) {
    const std::string& text = *field.fallback;
    const Form::Kind kind = field.forms.front().kind;
    if (kind == Form::Kind::kBoolean)
        return text == "true";
    double number = 0;
    if ((kind == Form::Kind::kInteger || kind == Form::Kind::kNumber) &&
        std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc())
        return kind == Form::Kind::kInteger ? json::value(static_cast<int64_t>(number))
                                            : json::value(number);
    if (kind != Form::Kind::kWords)
        return json::value(text);
    json::array words;
    for (size_t begin = 1; begin < text.size();) {
        const size_t end = text.find_first_of(",]", begin);
        if (end > begin)
            words.emplace_back(text.substr(begin, end - begin));
        begin = text.find_first_not_of(", ]", end);
    }
    return words;
}

json::object field_schema(const FieldShape& field, const std::string& path) {
    json::object out;
    if (field.forms.size() == 1) {
        out = form_schema(field.forms.front(), path);
    } else {
        json::array forms;
        for (const Form& form : field.forms)
            forms.emplace_back(form_schema(form, path));
        out["anyOf"] = std::move(forms);
    }
    if (field.fallback)
        out["default"] = fallback_value(field);
    if (const std::string_view words = field_words(path); !words.empty())
        out["description"] = words;
    return out;
}

void add_fields(const Shape& shape, const std::string& path, json::object& properties,
                json::array& required) {
    for (const FieldShape& field : shape.fields) {
        properties[field.name] =
            field_schema(field, path.empty() ? field.name : path + "." + field.name);
        if (field.required)
            required.emplace_back(field.name);
    }
}

json::object closed_object(json::object properties, json::array required) {
    json::object out{
        {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
    if (!required.empty())
        out["required"] = std::move(required);
    return out;
}

// Of a map with cases: the fields of all, and those of one. At the top the paths begin anew with
// the kind, as each kind has its own `spec`.
json::object case_schema(const Shape& shape, const std::string& path, size_t which) {
    json::object properties;
    json::array required;
    add_fields(shape, path, properties, required);
    const Shape& more = shape.cases.at(which);
    add_fields(more, path.empty() ? more.word : path, properties, required);
    json::object chosen{{"const", more.word}};
    if (const auto* described = properties[shape.case_field].as_object().if_contains("description"))
        chosen["description"] = *described;
    properties[shape.case_field] = std::move(chosen);
    return closed_object(std::move(properties), std::move(required));
}

json::object object_of(const Shape& shape, const std::string& path) {
    if (!shape.cases.empty()) {
        json::array all;
        for (size_t i = 0; i < shape.cases.size(); ++i)
            all.emplace_back(case_schema(shape, path, i));
        return {{"oneOf", std::move(all)}};
    }
    json::object properties;
    json::array required;
    add_fields(shape, path, properties, required);
    return closed_object(std::move(properties), std::move(required));
}

} // namespace

Result<std::string> json_schema(std::string_view kind) {
    const Shape shape = document_shape();
    json::object out{{"$schema", "http://json-schema.org/draft-07/schema#"},
                     {"title", kind.empty() ? std::string("Berth's documents")
                                            : "Berth's kind: " + std::string(kind)}};
    std::vector<std::string> kinds;
    for (size_t i = 0; i < shape.cases.size(); ++i) {
        kinds.push_back(shape.cases[i].word);
        if (kinds.back() == kind)
            for (auto& [key, value] : case_schema(shape, "", i))
                out[key] = value;
    }
    if (kind.empty())
        for (auto& [key, value] : object_of(shape, ""))
            out[key] = value;
    else if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
        std::string known;
        for (const std::string& one : kinds)
            known += (known.empty() ? "" : ", ") + one;
        const std::string near = nearest_name(kind, kinds);
        return fail(ErrorCode::kInvalidArgument,
                    "no kind '" + std::string(kind) + "'; " +
                        (near.empty() ? "known: " + known : "did you mean '" + near + "'?"));
    }
    return json::serialize(out);
}

} // namespace berth::policies
