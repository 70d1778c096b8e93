// SPDX-License-Identifier: Apache-2.0
// Goal: a cron line means what crontab(5) says, a wrong one is refused in words, and the next
// change is the first. Method: known minutes; a second, plain reading of lines and calendar that
// counts minute by minute; random lines against it.
#include "policies/cron.h"

#include <gtest/gtest.h>

#include <random>

namespace berth::policies {

namespace {

Cron cron(const char* text) {
    Result<Cron> parsed = parse_cron(text);
    EXPECT_TRUE(parsed) << text << ": " << parsed.error().message;
    return parsed.value_or(Cron{});
}
std::string error_of(const char* text) {
    const Result<Cron> parsed = parse_cron(text);
    return parsed ? "no error" : parsed.error().message;
}

bool is_leap(int year) {
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}
int days_of(int year, int month) {
    return month == 2 ? (is_leap(year) ? 29 : 28)
                      : (month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31);
}
CivilTime minute_after(CivilTime time) {
    if (++time.minute < 60)
        return time;
    time.minute = 0;
    if (++time.hour < 24)
        return time;
    time.hour = 0;
    if (++time.day <= days_of(time.year, time.month))
        return time;
    time.day = 1;
    if (++time.month <= 12)
        return time;
    time.month = 1;
    ++time.year;
    return time;
}

} // namespace

TEST(Cron, FieldsAreSetsOfValues) {
    const Cron c = cron("0-10/5,59 */6 1,15 jan,MAR-may sun");
    EXPECT_EQ(c.minutes, 1ULL | 1ULL << 5 | 1ULL << 10 | 1ULL << 59);
    EXPECT_EQ(c.hours, 1U | 1U << 6 | 1U << 12 | 1U << 18);
    EXPECT_EQ(c.days, 1U << 1 | 1U << 15);
    EXPECT_EQ(c.months, 1U << 1 | 1U << 3 | 1U << 4 | 1U << 5);
    EXPECT_EQ(c.weekdays, 1U);
    EXPECT_FALSE(c.any_day);
    EXPECT_FALSE(c.any_weekday);
    EXPECT_EQ(cron("* * * * 7"), cron("* * * * 0"));
    EXPECT_EQ(cron("* * * * fri-sun").weekdays, 1U | 1U << 5 | 1U << 6);
    EXPECT_EQ(cron("* * * * 5-7").weekdays, 1U | 1U << 5 | 1U << 6);
    EXPECT_EQ(cron(" *  *\t* * *  "), cron("* * * * *"));
}

TEST(Cron, TheWindowOfTheDesignIsTheNight) {
    const Cron night = cron("* 0-6,22-23 * * *");
    EXPECT_TRUE(matches(night, {2024, 5, 1, 22, 0}));
    EXPECT_TRUE(matches(night, {2024, 5, 2, 6, 59}));
    EXPECT_FALSE(matches(night, {2024, 5, 2, 7, 0}));
    EXPECT_FALSE(matches(night, {2024, 5, 1, 21, 59}));
    EXPECT_EQ(next_change(night, {2024, 5, 1, 12, 30}), (CivilTime{2024, 5, 1, 22, 0}));
    EXPECT_EQ(next_change(night, {2024, 5, 1, 22, 0}), (CivilTime{2024, 5, 2, 7, 0}));
    EXPECT_EQ(next_change(night, {2024, 12, 31, 23, 59}), (CivilTime{2025, 1, 1, 7, 0}));
}

TEST(Cron, DayOfTheMonthAndOfTheWeekAreEitherWhenBothAreRestricted) {
    const Cron both = cron("0 0 13 * fri");
    EXPECT_TRUE(matches(both, {2024, 5, 13, 0, 0})) << "the 13th, a Monday";
    EXPECT_TRUE(matches(both, {2024, 5, 17, 0, 0})) << "a Friday";
    EXPECT_FALSE(matches(both, {2024, 5, 14, 0, 0}));
    EXPECT_FALSE(matches(cron("0 0 13 * *"), {2024, 5, 17, 0, 0}));
    EXPECT_FALSE(matches(cron("0 0 * * fri"), {2024, 5, 13, 0, 0}));
    // '*' with a step is no restriction in that sense: both must fit.
    const Cron stepped = cron("0 0 */2 * mon");
    EXPECT_TRUE(matches(stepped, {2024, 5, 13, 0, 0}));
    EXPECT_FALSE(matches(stepped, {2024, 5, 6, 0, 0})) << "a Monday, but the 6th";
    EXPECT_FALSE(matches(stepped, {2024, 5, 3, 0, 0})) << "the 3rd, but a Friday";
}

TEST(Cron, LeapYearsAreTheCalendars) {
    const Cron leap = cron("0 12 29 2 *");
    EXPECT_EQ(next_change(leap, {2023, 3, 1, 0, 0}), (CivilTime{2024, 2, 29, 12, 0}));
    EXPECT_EQ(next_change(leap, {2024, 2, 29, 12, 0}), (CivilTime{2024, 2, 29, 12, 1}));
    EXPECT_EQ(next_change(leap, {2024, 2, 29, 12, 1}), (CivilTime{2028, 2, 29, 12, 0}));
    EXPECT_EQ(next_change(leap, {2096, 2, 29, 12, 1}), (CivilTime{2104, 2, 29, 12, 0}))
        << "2100 is no leap year";
    EXPECT_EQ(next_change(leap, {1999, 1, 1, 0, 0}), (CivilTime{2000, 2, 29, 12, 0}))
        << "2000 is one";
    EXPECT_EQ(weekday_of({2024, 2, 29, 0, 0}), 4);
    EXPECT_EQ(weekday_of({1970, 1, 1, 0, 0}), 4);
    EXPECT_EQ(weekday_of({2000, 1, 1, 0, 0}), 6);
}

TEST(Cron, WhatAlwaysMatchesNeverChangesAndTheRarestIsFound) {
    EXPECT_EQ(next_change(cron("* * * * *"), {2024, 5, 1, 0, 0}), std::nullopt);
    EXPECT_EQ(next_change(cron("0-59 0-23 1-31 1-12 0-6"), {2024, 5, 1, 0, 0}), std::nullopt);
    // 1 February on a Sunday (31 February there is none): 2111, then 2122.
    const Cron rare = cron("0 0 */30 2 sun");
    EXPECT_EQ(next_change(rare, {2111, 2, 1, 0, 1}), (CivilTime{2122, 2, 1, 0, 0}));
    EXPECT_EQ(next_change(rare, {2105, 2, 1, 0, 1}), (CivilTime{2111, 2, 1, 0, 0}));
}

TEST(Cron, WrongLinesAreRefusedWithTheirPartAndWhatWasExpected) {
    const std::pair<const char*, const char*> faults[] = {
        {"", "expected 5 fields (minute, hour, day of the month, month, day of the week), found 0"},
        {"* * * *", "found 4"},
        {"* * * * * *", "found 6"},
        {"60 * * * *", "minute: '60' is out of range; expected 0 to 59"},
        {"* 24 * * *", "hour: '24' is out of range; expected 0 to 23"},
        {"* * 0 * *", "day of the month: '0' is out of range; expected 1 to 31"},
        {"* * * 13 *", "month: '13' is out of range; expected 1 to 12 or jan to dec"},
        {"* * * * 8", "day of the week: '8' is out of range; expected 0 to 7 or sun to sat"},
        {"* * * jann *", "month: 'jann' is not a value; did you mean 'jan'?"},
        {"* * * * x", "day of the week: 'x' is not a value; expected 0 to 7"},
        {"-1 * * * *", "minute: '-1' is not a value"},
        {"5-1 * * * *", "minute: '5-1' runs backwards; write it as two ranges with a comma"},
        {"5- * * * *", "minute: '5-' has no end"},
        {"1,,2 * * * *", "minute: '' has no value"},
        {"/5 * * * *", "minute: '/5' has no value"},
        {"*/0 * * * *", "minute: '*/0' has a step that is no number above 0"},
        {"*/60 * * * *", "minute: '*/60' has a step beyond the field; expected 59 or less"},
        {"*/ * * * *", "has a step that is no number"},
        {"3/2 * * * *", "minute: '3/2' has a step without a range"},
        {"1-2-3 * * * *", "minute: '2-3' is not a value"},
        {"** * * * *", "minute: '**' is not a value"},
        {"1.5 * * * *", "minute: '1.5' is not a value"},
        {"99999999999 * * * *", "minute: '99999999999' is not a value"},
        {"@daily", "@daily"},
        {"0 0 30 2 *", "never comes: no month of '2' has a day '30'"},
        {"0 0 31 apr,jun,sep,nov *", "never comes"},
        {"0 0 30-31 2 */2", "never comes"},
    };
    for (const auto& [line, message] : faults)
        EXPECT_NE(error_of(line).find(message), std::string::npos)
            << "'" << line << "' gives: " << error_of(line);
    EXPECT_EQ(error_of("0 0 30 2 mon"), "no error") << "every Monday of February";
    EXPECT_EQ(error_of("0 0 29 2 *"), "no error");
}

TEST(Cron, TheNextChangeOfRandomLinesIsTheFirstMinuteByMinute) {
    std::mt19937 random(7);
    auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    auto field = [&](int least, int most) -> std::string {
        if (below(3) == 0)
            return "*";
        const int from = least + below(most - least + 1);
        const int to = from + below(most - from + 1);
        std::string text = std::to_string(from);
        if (below(2) == 0)
            text += "-" + std::to_string(to) +
                    (below(2) == 0 ? "/" + std::to_string(1 + below(3)) : "");
        return below(3) == 0 ? text + "," + std::to_string(least + below(most - least + 1)) : text;
    };
    for (int round = 0; round < 300; ++round) {
        const std::string line = field(0, 59) + " " + field(0, 23) + " " + field(1, 28) + " " +
                                 (below(2) == 0 ? "*" : field(1, 12)) + " " + field(0, 7);
        const Cron one = cron(line.c_str());
        CivilTime time{2023 + below(3), 1 + below(12), 1 + below(28), below(24), below(60)};
        const CivilTime start = time;
        const bool now = matches(one, time);
        int looked = 0;
        do
            time = minute_after(time);
        while (matches(one, time) == now && ++looked < 50'000);
        const std::optional<CivilTime> next = next_change(one, start);
        if (looked < 50'000)
            EXPECT_EQ(next, time) << line;
        else if (next)
            EXPECT_GT(*next, time) << line;
    }
}

} // namespace berth::policies
