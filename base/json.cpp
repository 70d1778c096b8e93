// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::json {

Result<value> parse(std::string_view text, std::string_view what) {
    boost::json::parse_options options;
    options.max_depth = 64;
    boost::json::stream_parser parser({}, options);
    boost::json::error_code error;
    size_t consumed = parser.write_some(text.data(), text.size(), error);
    if (!error && consumed < text.size()) {
        size_t rest = text.find_first_not_of(" \t\r\n", consumed);
        if (rest != std::string_view::npos) {
            consumed = rest;
            error = boost::json::make_error_code(boost::json::error::extra_data);
        }
    }
    if (!error)
        parser.finish(error);
    if (error) {
        std::string_view before = text.substr(0, consumed);
        auto line = 1 + std::count(before.begin(), before.end(), '\n');
        size_t column = consumed - (before.rfind('\n') + 1) + 1;
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: not valid JSON at byte {} (line {}, column {}): {}", what,
                                consumed, line, column, error.message()));
    }
    return parser.release();
}

Reader::Reader(const value& from, std::string_view what) : what_(what) {
    object_ = from.if_object();
    if (object_ == nullptr)
        error_ = Error{ErrorCode::kInvalidArgument,
                       fmt::format("{}: expected an object, found {}", what_, kind_name(from)),
                       {},
                       0};
}

const value* Reader::find(std::string_view field, bool required) {
    if (object_ == nullptr)
        return nullptr;
    seen_.emplace_back(boost::json::string_view(field.data(), field.size()));
    const value* found = object_->if_contains(boost::json::string_view(field.data(), field.size()));
    if (found == nullptr && required)
        refuse(field, "is missing");
    return found;
}

void Reader::refuse(std::string_view field, std::string_view why) {
    if (!error_)
        error_ = Error{ErrorCode::kInvalidArgument,
                       fmt::format("{}: field '{}': {}", what_, field, why),
                       {},
                       0};
}

void Reader::expected(std::string_view field, std::string_view type, const value& found) {
    refuse(field, fmt::format("expected {}, found {}", type, kind_name(found)));
}

std::string Reader::string(std::string_view field) {
    const value* found = find(field, true);
    if (found == nullptr)
        return {};
    if (const auto* text = found->if_string())
        return {text->data(), text->size()};
    expected(field, "a string", *found);
    return {};
}

std::string Reader::string(std::string_view field, std::string_view fallback) {
    const value* found = find(field, false);
    if (found == nullptr)
        return std::string(fallback);
    if (const auto* text = found->if_string())
        return {text->data(), text->size()};
    expected(field, "a string", *found);
    return {};
}

namespace {

std::optional<int64_t> as_int64(const value& from) {
    if (const int64_t* number = from.if_int64())
        return *number;
    if (const uint64_t* number = from.if_uint64();
        number != nullptr && *number <= uint64_t{INT64_MAX})
        return static_cast<int64_t>(*number);
    return std::nullopt;
}

std::optional<uint64_t> as_uint64(const value& from) {
    if (const uint64_t* number = from.if_uint64())
        return *number;
    if (const int64_t* number = from.if_int64(); number != nullptr && *number >= 0)
        return static_cast<uint64_t>(*number);
    return std::nullopt;
}

std::optional<double> as_double(const value& from) {
    if (const double* number = from.if_double())
        return *number;
    if (const int64_t* number = from.if_int64())
        return static_cast<double>(*number);
    if (const uint64_t* number = from.if_uint64())
        return static_cast<double>(*number);
    return std::nullopt;
}

} // namespace

int64_t Reader::integer(std::string_view field) {
    const value* found = find(field, true);
    if (found == nullptr)
        return 0;
    if (auto number = as_int64(*found))
        return *number;
    expected(field, "a whole number", *found);
    return 0;
}

int64_t Reader::integer(std::string_view field, int64_t fallback) {
    if (object_ == nullptr ||
        !object_->contains(boost::json::string_view(field.data(), field.size()))) {
        find(field, false);
        return fallback;
    }
    return integer(field);
}

uint64_t Reader::unsigned_integer(std::string_view field) {
    const value* found = find(field, true);
    if (found == nullptr)
        return 0;
    if (auto number = as_uint64(*found))
        return *number;
    expected(field, "a whole number of zero or more", *found);
    return 0;
}

uint64_t Reader::unsigned_integer(std::string_view field, uint64_t fallback) {
    if (object_ == nullptr ||
        !object_->contains(boost::json::string_view(field.data(), field.size()))) {
        find(field, false);
        return fallback;
    }
    return unsigned_integer(field);
}

double Reader::number(std::string_view field) {
    const value* found = find(field, true);
    if (found == nullptr)
        return 0;
    if (auto number = as_double(*found))
        return *number;
    expected(field, "a number", *found);
    return 0;
}

double Reader::number(std::string_view field, double fallback) {
    const value* found = find(field, false);
    if (found == nullptr || found->is_null())
        return fallback;
    return number(field);
}

bool Reader::boolean(std::string_view field, bool fallback) {
    const value* found = find(field, false);
    if (found == nullptr)
        return fallback;
    if (const bool* flag = found->if_bool())
        return *flag;
    expected(field, "true or false", *found);
    return fallback;
}

const value* Reader::any(std::string_view field) {
    return find(field, false);
}

Reader& Reader::allow_unknown() {
    allow_unknown_ = true;
    return *this;
}

Status Reader::finish() {
    if (!error_ && !allow_unknown_ && object_ != nullptr)
        for (const auto& [key, ignored] : *object_) {
            bool known = std::any_of(seen_.begin(), seen_.end(),
                                     [&](const value& name) { return name.as_string() == key; });
            if (!known)
                refuse(std::string_view(key.data(), key.size()), "is not known here");
        }
    if (error_)
        return fail(*error_);
    return {};
}

std::string_view kind_name(const value& of) {
    switch (of.kind()) {
    case boost::json::kind::null:
        return "null";
    case boost::json::kind::bool_:
        return "true or false";
    case boost::json::kind::int64:
    case boost::json::kind::uint64:
    case boost::json::kind::double_:
        return "a number";
    case boost::json::kind::string:
        return "a string";
    case boost::json::kind::array:
        return "an array";
    case boost::json::kind::object:
        return "an object";
    }
    return "nothing";
}

value from_error(const Error& error) {
    object written;
    std::string_view code = to_string(error.code);
    written["code"] = boost::json::string_view(code.data(), code.size());
    written["reason"] =
        error.reason.empty() ? written["code"].as_string() : boost::json::string(error.reason);
    written["message"] = error.message;
    return written;
}

Error to_error(const value& from) {
    Reader reader(from, "an error");
    reader.allow_unknown();
    Error error;
    std::string code = reader.string("code", "Internal");
    error.code = error_code_from(code);
    error.reason = reader.string("reason", "");
    error.message = reader.string("message", "");
    if (error.reason == code)
        error.reason.clear();
    return error;
}

} // namespace berth::json
