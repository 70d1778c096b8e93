// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace berth {

namespace {

struct Unit {
    std::string_view name;
    uint64_t factor;
};

constexpr std::array kByteUnits = {
    Unit{"Ti", uint64_t{1} << 40},
    Unit{"Gi", uint64_t{1} << 30},
    Unit{"Mi", uint64_t{1} << 20},
    Unit{"Ki", uint64_t{1} << 10},
    Unit{"T", 1000000000000ULL},
    Unit{"G", 1000000000ULL},
    Unit{"M", 1000000ULL},
    Unit{"K", 1000ULL},
    Unit{"k", 1000ULL},
    Unit{"", 1ULL},
};

constexpr std::array kTimeUnits = {
    Unit{"h", 3600000000000ULL}, Unit{"m", 60000000000ULL}, Unit{"s", 1000000000ULL},
    Unit{"ms", 1000000ULL},      Unit{"us", 1000ULL},       Unit{"ns", 1ULL},
};

// Splits "1.5Gi" into 1.5 and "Gi"; an empty number is a failure.
bool split_number(std::string_view& text, double& number, std::string_view& unit) {
    size_t digits = text.find_first_not_of("0123456789.");
    std::string_view figure = text.substr(0, digits);
    if (figure.empty())
        return false;
    auto [end, error] = std::from_chars(figure.data(), figure.data() + figure.size(), number,
                                        std::chars_format::fixed);
    if (error != std::errc{} || end != figure.data() + figure.size())
        return false;
    text.remove_prefix(figure.size());
    size_t letters = text.find_first_of("0123456789.");
    unit = text.substr(0, letters);
    text.remove_prefix(unit.size());
    return true;
}

template <size_t N>
const Unit* find_unit(const std::array<Unit, N>& units, std::string_view name) {
    for (const Unit& unit : units)
        if (unit.name == name)
            return &unit;
    return nullptr;
}

} // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
    auto refuse = [&](std::string_view why) {
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("'{}' is not a number of bytes: {}; write 512Mi, 24Gi or 4096", text, why));
    };
    std::string_view rest = text;
    double number = 0;
    std::string_view name;
    if (!split_number(rest, number, name) || !rest.empty())
        return refuse("expected a number with a unit");
    const Unit* unit = find_unit(kByteUnits, name);
    if (unit == nullptr)
        return refuse(fmt::format("unknown unit '{}'", name));
    if (name.empty()) {
        uint64_t exact = 0;
        auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), exact);
        if (error != std::errc{} || end != text.data() + text.size())
            return refuse("a figure without unit must be a whole number that fits 64 bits");
        return exact;
    }
    double bytes = number * static_cast<double>(unit->factor);
    if (!(bytes < 9.2e18))
        return refuse("too large");
    return static_cast<uint64_t>(std::llround(bytes));
}

std::string format_bytes(uint64_t bytes) {
    for (const Unit& unit : kByteUnits)
        if (unit.name.size() == 2 && bytes >= unit.factor)
            return fmt::format("{:.1f} {}B",
                               static_cast<double>(bytes) / static_cast<double>(unit.factor),
                               unit.name);
    return fmt::format("{} B", bytes);
}

std::string format_bytes_exact(uint64_t bytes) {
    for (const Unit& unit : kByteUnits)
        if (unit.name.size() == 2 && bytes != 0 && bytes % unit.factor == 0)
            return fmt::format("{}{}", bytes / unit.factor, unit.name);
    return fmt::format("{}", bytes);
}

Result<Nanoseconds> parse_duration(std::string_view text) {
    auto refuse = [&](std::string_view why) {
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("'{}' is not a duration: {}; write 200ms, 1s, 10m or 1h30m", text, why));
    };
    if (text == "0")
        return Nanoseconds(0);
    if (text.empty())
        return refuse("it is empty");
    std::string_view rest = text;
    double total = 0;
    while (!rest.empty()) {
        double number = 0;
        std::string_view name;
        if (!split_number(rest, number, name))
            return refuse("expected a number with a unit");
        const Unit* unit = find_unit(kTimeUnits, name);
        if (unit == nullptr)
            return refuse(name.empty() ? std::string("the unit is missing")
                                       : fmt::format("unknown unit '{}'", name));
        total += number * static_cast<double>(unit->factor);
    }
    if (!(total < 9.2e18))
        return refuse("too large");
    return Nanoseconds(std::llround(total));
}

std::string format_duration(Nanoseconds duration) {
    double ns = static_cast<double>(duration.count());
    double size = std::fabs(ns);
    if (size >= 120e9)
        return format_duration_exact(std::chrono::duration_cast<std::chrono::seconds>(duration));
    if (size >= 1e9)
        return fmt::format("{:.2f} s", ns / 1e9);
    if (size >= 1e6)
        return fmt::format("{:.1f} ms", ns / 1e6);
    if (size >= 1e3)
        return fmt::format("{:.0f} µs", ns / 1e3);
    return fmt::format("{:.0f} ns", ns);
}

std::string format_duration_exact(Nanoseconds duration) {
    auto left = static_cast<uint64_t>(duration.count() < 0 ? -duration.count() : duration.count());
    if (left == 0)
        return "0";
    std::string text = duration.count() < 0 ? "-" : "";
    for (const Unit& unit : kTimeUnits) {
        uint64_t count = left / unit.factor;
        if (count == 0)
            continue;
        text += fmt::format("{}{}", count, unit.name);
        left %= unit.factor;
    }
    return text;
}

Result<double> parse_percentage(std::string_view text) {
    std::string_view rest = text;
    double number = 0;
    std::string_view unit;
    if (!split_number(rest, number, unit) || !rest.empty() || unit != "%" || number > 100)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("'{}' is not a percentage between 0% and 100%", text));
    return number / 100;
}

} // namespace berth
