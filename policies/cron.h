// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

// Cron lines as crontab(5) of Vixie's cron and POSIX's crontab describe them, read as sets of
// minutes: "* 0-6,22-23 * * *" is every minute from 22:00 to 06:59. Pure: whoever asks says what
// time it is, in whichever zone he means. A minute that a clock change skips never comes, and one
// that it repeats comes twice; nothing here knows of such changes.
namespace berth::policies {

// A minute of the Gregorian calendar.
struct CivilTime {
    int year = 1970;
    int month = 1; // 1 to 12
    int day = 1;
    int hour = 0;
    int minute = 0;
    auto operator<=>(const CivilTime&) const = default;
};
// 0 (Sunday) to 6.
int weekday_of(const CivilTime& time);

// Bit n of a set stands for the value n. Equal lines make equal values; see parse_cron.
struct Cron {
    uint64_t minutes = 0;
    uint32_t hours = 0;
    uint32_t days = 0;   // of the month
    uint32_t months = 0; // 1 to 12
    uint32_t weekdays = 0;
    // Whether the field begins with '*'. When neither does, one of the two is enough; else both
    // must fit (so that "*" asks for nothing).
    bool any_day = true;
    bool any_weekday = true;
    bool operator==(const Cron&) const = default;
};

// Five fields: minute (0-59), hour (0-23), day of the month (1-31), month (1-12 or jan-dec), day of
// the week (0-7 or sun-sat; 0 and 7 are Sunday). Each is a list, by commas, of '*', numbers and
// ranges, these and '*' with a step: "*/15", "8-18/2". InvalidArgument, with the part that is wrong
// and what was expected; a line that never comes (30 February) is wrong too.
Result<Cron> parse_cron(std::string_view text);

bool matches(const Cron& cron, const CivilTime& time);

// The first minute after `time` in which matches() says something else than in `time`; none for a
// line that always matches. Looks at 40 years at most: every line that matches at all does so
// within 12 (29 February around 2100; 1 February on a given weekday).
std::optional<CivilTime> next_change(const Cron& cron, const CivilTime& time);

} // namespace berth::policies
