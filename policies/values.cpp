// SPDX-License-Identifier: Apache-2.0
// How Fields reads single values, and writes down that it was asked for them.
#include "policies/fields.h"
#include "policies/yaml.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace berth::policies {

namespace {

// Bounds within which sums of many values and points of time cannot overflow.
constexpr uint64_t kBytesMax = uint64_t{1} << 50;
constexpr Nanoseconds kDurationMax = std::chrono::hours(24 * 366 * 10);

bool is_quoted(const YAML::Node& node) {
    return node.Tag() == "!";
}

// "010" is 8 to some readers and 10 to others: nobody means either.
bool has_leading_zero(std::string_view text) {
    if (!text.empty() && text.front() == '-')
        text.remove_prefix(1);
    return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

} // namespace

const std::string& Fields::scalar(const std::string& field, const YAML::Node& node,
                                  std::string_view wanted) const {
    if (!node.IsScalar())
        refuse_at(node, "field '" + path_of(field) + "': expected " + std::string(wanted) +
                            ", found " + shown(node));
    return node.Scalar();
}

std::string Fields::text(const std::string& field) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kText}, true);
        return {};
    }
    const std::string& value = scalar(field, *find(field, true), "text");
    if (value.empty())
        fail_field(field, "must not be empty");
    return value;
}

std::string Fields::text(const std::string& field, std::string fallback) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kText}, false);
        return fallback;
    }
    return find(field, false) != nullptr ? text(field) : std::move(fallback);
}

std::string Fields::name(const std::string& field) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kName}, true);
        return "name";
    }
    std::string value = text(field);
    if (!is_name(value))
        fail_field(field, "not a name: " + shown(*look(field)) +
                              "; use 1 to 63 letters, digits, '.', '_' and '-'");
    return value;
}

bool Fields::boolean(const std::string& field, bool fallback) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kBoolean}, false, fallback ? "true" : "false");
        return fallback;
    }
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return fallback;
    const std::string& value = scalar(field, *found, "true or false");
    if (!is_quoted(*found) && value == "true")
        return true;
    if (!is_quoted(*found) && value == "false")
        return false;
    fail_field(field, "expected true or false, found " + shown(*found));
}

int64_t Fields::read_integer(const std::string& field, Range range) {
    const YAML::Node& found = *find(field, true);
    const std::string& value = scalar(field, found, "an integer");
    int64_t number = 0;
    const char* end = value.data() + value.size();
    auto [rest, status] = std::from_chars(value.data(), end, number);
    if (status != std::errc() || rest != end || is_quoted(found))
        fail_field(field, "expected an integer, found " + shown(found));
    if (has_leading_zero(value))
        fail_field(field,
                   "expected a decimal integer without leading zeros, found " + shown(found));
    if (number < range.least)
        fail_field(field, fmt::format("expected {} or more, found '{}'", range.least, number));
    if (number > range.most)
        fail_field(field, fmt::format("expected {} or less, found '{}'", range.most, number));
    return number;
}

namespace {

Form integer_form(Range range) {
    Form form{.kind = Form::Kind::kInteger};
    if (range.least != INT64_MIN)
        form.least = static_cast<double>(range.least);
    if (range.most != INT64_MAX)
        form.most = static_cast<double>(range.most);
    return form;
}

} // namespace

int64_t Fields::integer(const std::string& field, Range range) {
    if (recording()) {
        record(field, integer_form(range), true);
        return std::max<int64_t>(range.least, 0);
    }
    return read_integer(field, range);
}

int64_t Fields::integer(const std::string& field, int64_t fallback, Range range) {
    if (recording()) {
        record(field, integer_form(range), false, std::to_string(fallback));
        return fallback;
    }
    return find(field, false) != nullptr ? read_integer(field, range) : fallback;
}

uint64_t Fields::count(const std::string& field, uint64_t fallback, Range range) {
    range.least = std::max<int64_t>(range.least, 0);
    return static_cast<uint64_t>(integer(field, static_cast<int64_t>(fallback), range));
}

double Fields::number(const std::string& field, double fallback) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kNumber}, false, fmt::format("{}", fallback));
        return fallback;
    }
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return fallback;
    const std::string& value = scalar(field, *found, "a number");
    double number = 0;
    const char* end = value.data() + value.size();
    auto [rest, status] = std::from_chars(value.data(), end, number);
    if (status != std::errc() || rest != end || is_quoted(*found) || has_leading_zero(value) ||
        !std::isfinite(number))
        fail_field(field, "expected a number, found " + shown(*found));
    return number;
}

double Fields::percentile(const std::string& field, double fallback) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kNumber, .least = 0, .most = 100}, false,
               fmt::format("{}", fallback));
        return fallback;
    }
    const double value = number(field, fallback);
    if (value <= 0 || value > 100)
        fail_field(field, "a percentile lies above 0 and is at most 100, found " +
                              shown(*look(field)) + "; write 99 or 99.9");
    return value;
}

uint64_t Fields::bytes(const std::string& field) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kBytes}, true);
        return 1;
    }
    const YAML::Node& found = *find(field, true);
    const std::string& value = scalar(field, found, "bytes such as 24Gi");
    if (has_leading_zero(value))
        fail_field(field, "expected bytes without leading zeros, found " + shown(found));
    Result<uint64_t> parsed = parse_bytes(value);
    if (!parsed)
        fail_field(field, parsed.error().message);
    if (*parsed > kBytesMax)
        fail_field(field,
                   "expected " + format_bytes_exact(kBytesMax) + " or less, found " + shown(found));
    return *parsed;
}

uint64_t Fields::bytes(const std::string& field, uint64_t fallback) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kBytes}, false, format_bytes_exact(fallback));
        return fallback;
    }
    return find(field, false) != nullptr ? bytes(field) : fallback;
}

std::optional<uint64_t> Fields::optional_bytes(const std::string& field) {
    if (!recording())
        return find(field, false) != nullptr ? std::optional(bytes(field)) : std::nullopt;
    record(field, Form{.kind = Form::Kind::kBytes}, false);
    return std::nullopt;
}

std::optional<uint64_t> Fields::bytes_or(const std::string& field, const std::string& word) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kWord, .words = {word}}, false, word);
        record(field, Form{.kind = Form::Kind::kBytes}, false);
        return std::nullopt;
    }
    const YAML::Node* found = find(field, false);
    if (found == nullptr || (found->IsScalar() && found->Scalar() == word))
        return std::nullopt;
    return bytes(field);
}

Nanoseconds Fields::read_duration(const std::string& field, bool above_0) {
    const YAML::Node& found = *find(field, true);
    const std::string& value = scalar(field, found, "a duration such as 200ms");
    if (has_leading_zero(value))
        fail_field(field, "expected a duration without leading zeros, found " + shown(found));
    Result<Nanoseconds> parsed = parse_duration(value);
    if (!parsed)
        fail_field(field, parsed.error().message);
    if (*parsed > kDurationMax)
        fail_field(field, "expected " + format_duration_exact(kDurationMax) + " or less, found " +
                              shown(found));
    if (above_0 && *parsed <= Nanoseconds(0))
        fail_field(field, "must be above 0, found " + shown(found));
    return *parsed;
}

Nanoseconds Fields::duration(const std::string& field) {
    if (!recording())
        return read_duration(field, false);
    record(field, Form{.kind = Form::Kind::kDuration}, true);
    return Nanoseconds(1);
}

Nanoseconds Fields::duration(const std::string& field, Nanoseconds fallback) {
    if (!recording())
        return find(field, false) != nullptr ? read_duration(field, false) : fallback;
    record(field, Form{.kind = Form::Kind::kDuration}, false, format_duration_exact(fallback));
    return fallback;
}

Nanoseconds Fields::duration_above_0(const std::string& field) {
    return recording() ? duration(field) : read_duration(field, true);
}

Nanoseconds Fields::duration_above_0(const std::string& field, Nanoseconds fallback) {
    if (recording() && fallback == Nanoseconds(0)) { // none is set: no default to show
        record(field, Form{.kind = Form::Kind::kDuration}, false);
        return fallback;
    }
    if (recording() || find(field, false) == nullptr)
        return duration(field, fallback);
    return read_duration(field, true);
}

std::optional<double> Fields::percentage_or(const std::string& field, double fallback,
                                            const std::string& word) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kPercentage}, false,
               fmt::format("{}%", fallback * 100));
        record(field, Form{.kind = Form::Kind::kWord, .words = {word}}, false);
        return fallback;
    }
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return fallback;
    const std::string& value = scalar(field, *found, "a percentage such as 30%");
    if (value == word)
        return std::nullopt;
    Result<double> parsed = parse_percentage(value);
    if (!parsed)
        fail_field(field, parsed.error().message + " (or " + word + ")");
    return *parsed;
}

} // namespace berth::policies
