// SPDX-License-Identifier: Apache-2.0
#include "policies/cron.h"

#include "policies/yaml.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <chrono>
#include <string>
#include <vector>

namespace berth::policies {

namespace {

constexpr int kDaysMax = 40 * 366;
constexpr int kMinutesOfDay = 24 * 60;

struct FieldKind {
    const char* name;
    int least, most;
    std::vector<std::string> names; // of least, least + 1, ...
};

const std::array<FieldKind, 5>& kinds() {
    static const std::array<FieldKind, 5> all{
        FieldKind{"minute", 0, 59, {}},
        FieldKind{"hour", 0, 23, {}},
        FieldKind{"day of the month", 1, 31, {}},
        FieldKind{
            "month",
            1,
            12,
            {"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
        FieldKind{"day of the week", 0, 7, {"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
    };
    return all;
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z')
            c = static_cast<char>(c - 'A' + 'a');
    return out;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators,
                                    bool keep_empty) {
    std::vector<std::string_view> parts;
    size_t begin = 0;
    while (begin <= text.size()) {
        const size_t end = std::min(text.find_first_of(separators, begin), text.size());
        if (end > begin || keep_empty)
            parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

tl::unexpected<Error> refuse(const FieldKind& kind, std::string_view part, const std::string& why) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' {}", kind.name, part.substr(0, 40), why));
}

std::string expectation(const FieldKind& kind) {
    std::string said = fmt::format("expected {} to {}", kind.least, kind.most);
    if (!kind.names.empty())
        said += fmt::format(" or {} to {}", kind.names.front(), kind.names.back());
    return said;
}

Result<int> parse_value(const FieldKind& kind, std::string_view text, bool ends_range) {
    const std::string word = lower(text);
    for (size_t i = 0; i < kind.names.size(); ++i)
        if (kind.names[i] == word) // a week that ends on Sunday: "fri-sun"
            return ends_range && i == 0 && kind.most == 7 ? 7 : kind.least + static_cast<int>(i);
    int value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || text.front() == '-') {
        const std::string near = nearest_name(word, kind.names);
        return refuse(kind, text,
                      near.empty() ? "is not a value; " + expectation(kind)
                                   : "is not a value; did you mean '" + near + "'?");
    }
    if (value < kind.least || value > kind.most)
        return refuse(kind, text, "is out of range; " + expectation(kind));
    return value;
}

Result<int> parse_step(const FieldKind& kind, std::string_view part, std::string_view text) {
    int step = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (text.empty() || error != std::errc() || end != text.data() + text.size() || step < 1)
        return refuse(kind, part, "has a step that is no number above 0");
    if (step > kind.most - kind.least)
        return refuse(kind, part,
                      fmt::format("has a step beyond the field; expected {} or less",
                                  kind.most - kind.least));
    return step;
}

// One element of a list: "*", "*/5", "7", "1-5", "1-5/2".
Result<uint64_t> parse_part(const FieldKind& kind, std::string_view part) {
    const size_t slash = part.find('/');
    const std::string_view range = part.substr(0, slash);
    if (range.empty())
        return refuse(kind, part, "has no value; " + expectation(kind));
    int least = kind.least, most = kind.most == 7 ? 6 : kind.most;
    if (range != "*") {
        const size_t dash = range.find('-', 1);
        const bool is_range = dash != std::string_view::npos;
        BERTH_ASSIGN(least, parse_value(kind, range.substr(0, dash), false));
        most = least;
        if (is_range && dash + 1 == range.size())
            return refuse(kind, part, "has no end; write FIRST-LAST");
        if (is_range) {
            BERTH_ASSIGN(most, parse_value(kind, range.substr(dash + 1), true));
        } else if (slash != std::string_view::npos) {
            return refuse(kind, part,
                          "has a step without a range; write FIRST-LAST/STEP or */STEP");
        }
        if (most < least)
            return refuse(kind, part, "runs backwards; write it as two ranges with a comma");
    }
    int step = 1;
    if (slash != std::string_view::npos) {
        BERTH_ASSIGN(step, parse_step(kind, part, part.substr(slash + 1)));
    }
    uint64_t set = 0;
    for (int value = least; value <= most; value += step)
        set |= uint64_t{1} << (kind.most == 7 && value == 7 ? 0 : value);
    return set;
}

Result<uint64_t> parse_field(const FieldKind& kind, std::string_view text) {
    uint64_t set = 0;
    for (std::string_view part : split(text, ",", true)) {
        BERTH_ASSIGN(const uint64_t values, parse_part(kind, part));
        set |= values;
    }
    return set;
}

bool has(uint64_t set, int value) {
    return (set >> value & 1) != 0;
}

bool day_matches(const Cron& cron, const std::chrono::year_month_day& date) {
    const auto weekday = std::chrono::weekday(std::chrono::sys_days(date)).c_encoding();
    if (!has(cron.months, static_cast<int>(static_cast<unsigned>(date.month()))))
        return false;
    const bool by_day = has(cron.days, static_cast<int>(static_cast<unsigned>(date.day())));
    const bool by_weekday = has(cron.weekdays, static_cast<int>(weekday));
    if (!cron.any_day && !cron.any_weekday)
        return by_day || by_weekday;
    return by_day && by_weekday;
}

bool minute_matches(const Cron& cron, int minute_of_day) {
    return has(cron.hours, minute_of_day / 60) && has(cron.minutes, minute_of_day % 60);
}

std::chrono::year_month_day date_of(const CivilTime& time) {
    return {std::chrono::year(time.year), std::chrono::month(static_cast<unsigned>(time.month)),
            std::chrono::day(static_cast<unsigned>(time.day))};
}

// Only months without the day that is asked for: by weekday there is always one.
bool never_comes(const Cron& cron) {
    if (!cron.any_weekday)
        return false;
    constexpr std::array<int, 13> kLongest{0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    for (int month = 1; month <= 12; ++month)
        for (int day = 1; has(cron.months, month) && day <= kLongest.at(static_cast<size_t>(month));
             ++day)
            if (has(cron.days, day))
                return false;
    return true;
}

} // namespace

int weekday_of(const CivilTime& time) {
    return static_cast<int>(
        std::chrono::weekday(std::chrono::sys_days(date_of(time))).c_encoding());
}

Result<Cron> parse_cron(std::string_view text) {
    const std::vector<std::string_view> fields = split(text, " \t", false);
    if (!fields.empty() && fields.front().front() == '@')
        return fail(ErrorCode::kInvalidArgument,
                    "names such as @daily stand for one minute; write the five fields of the "
                    "minutes that you mean");
    if (fields.size() != kinds().size())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("expected 5 fields (minute, hour, day of the month, month, day of "
                                "the week), found {}",
                                fields.size()));
    std::array<uint64_t, 5> sets{};
    for (size_t i = 0; i < sets.size(); ++i) {
        BERTH_ASSIGN(sets.at(i), parse_field(kinds().at(i), fields[i]));
    }
    const Cron cron{sets[0],
                    static_cast<uint32_t>(sets[1]),
                    static_cast<uint32_t>(sets[2]),
                    static_cast<uint32_t>(sets[3]),
                    static_cast<uint32_t>(sets[4]),
                    fields[2].front() == '*',
                    fields[4].front() == '*'};
    if (never_comes(cron))
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("never comes: no month of '{}' has a day '{}'", fields[3], fields[2]));
    return cron;
}

bool matches(const Cron& cron, const CivilTime& time) {
    return day_matches(cron, date_of(time)) && minute_matches(cron, time.hour * 60 + time.minute);
}

std::optional<CivilTime> next_change(const Cron& cron, const CivilTime& time) {
    const bool now = matches(cron, time);
    // The first minute of any day on which the line comes, and the first on which it does not.
    int first_on = kMinutesOfDay, first_off = kMinutesOfDay;
    for (int minute = kMinutesOfDay; minute-- > 0;)
        (minute_matches(cron, minute) ? first_on : first_off) = minute;
    std::chrono::sys_days day(date_of(time));
    for (int passed = 0; passed <= kDaysMax; ++passed, day += std::chrono::days(1)) {
        const std::chrono::year_month_day date(day);
        const bool comes = day_matches(cron, date);
        int minute = comes ? (now ? first_off : first_on) : (now ? 0 : kMinutesOfDay);
        if (passed == 0) {
            minute = time.hour * 60 + time.minute + 1;
            while (minute < kMinutesOfDay && (comes && minute_matches(cron, minute)) == now)
                ++minute;
        }
        if (minute < kMinutesOfDay)
            return CivilTime{static_cast<int>(date.year()),
                             static_cast<int>(static_cast<unsigned>(date.month())),
                             static_cast<int>(static_cast<unsigned>(date.day())), minute / 60,
                             minute % 60};
    }
    return std::nullopt;
}

} // namespace berth::policies
