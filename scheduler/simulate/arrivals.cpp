// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/arrivals.h"

#include "base/number.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>

namespace berth::simulate {

namespace {

constexpr std::array<std::string_view, 3> kTimes{"arrived_at", "timestamp", "TIMESTAMP"};
constexpr std::array<std::string_view, 3> kInputs{"input_tokens", "num_prefill_tokens",
                                                  "ContextTokens"};
constexpr std::array<std::string_view, 3> kOutputs{"output_tokens", "num_decode_tokens",
                                                   "GeneratedTokens"};

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '"'))
        text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '"' || text.back() == '\r'))
        text.remove_suffix(1);
    return text;
}

std::vector<std::string_view> cells_of(std::string_view line) {
    std::vector<std::string_view> cells;
    for (;;) {
        const size_t comma = line.find(',');
        cells.push_back(trimmed(line.substr(0, comma)));
        if (comma == std::string_view::npos)
            return cells;
        line.remove_prefix(comma + 1);
    }
}

// Whole counts, also where a tool wrote them as "512.0".
std::optional<uint64_t> count_of(std::string_view text) {
    const auto value = number_in<double>(text);
    if (!value || !std::isfinite(*value) || *value < 0 || *value > 1e9)
        return std::nullopt;
    return static_cast<uint64_t>(*value);
}

// "2023-11-16 18:17:03.97996", with a T or a zone's Z or offset, which is left out: all rows have
// it.
std::optional<double> calendar_seconds(std::string_view text) {
    if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':')
        return std::nullopt;
    const auto year = number_in<int>(text.substr(0, 4));
    const auto month = number_in<unsigned>(text.substr(5, 2));
    const auto day = number_in<unsigned>(text.substr(8, 2));
    const auto hour = number_in<int>(text.substr(11, 2));
    const auto minute = number_in<int>(text.substr(14, 2));
    const size_t end = text.find_first_not_of("0123456789.", 17);
    const auto second = number_in<double>(
        text.substr(17, end == std::string_view::npos ? std::string_view::npos : end - 17));
    if (!year || !month || !day || !hour || !minute || !second)
        return std::nullopt;
    const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(*month),
                                           std::chrono::day(*day)};
    if (!date.ok())
        return std::nullopt;
    return static_cast<double>(std::chrono::sys_days(date).time_since_epoch().count()) * 86'400.0 +
           *hour * 3600.0 + *minute * 60.0 + *second;
}

std::optional<double> seconds_of(std::string_view text) {
    if (const auto plain = number_in<double>(text); plain && std::isfinite(*plain))
        return plain;
    return calendar_seconds(text);
}

template <size_t N>
std::optional<size_t> column(const std::vector<std::string_view>& header,
                             const std::array<std::string_view, N>& names) {
    for (std::string_view name : names)
        if (const auto at = std::find(header.begin(), header.end(), name); at != header.end())
            return static_cast<size_t>(at - header.begin());
    return std::nullopt;
}

template <size_t N>
std::string listed(const std::array<std::string_view, N>& names) {
    std::string text;
    for (std::string_view name : names)
        text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
}

} // namespace

Result<std::vector<Arrival>> read_arrivals(std::string_view text, const std::string& file) {
    auto wrong = [&file](size_t line, const std::string& what) {
        return fail(ErrorCode::kInvalidArgument, file + ":" + std::to_string(line) + ": " + what);
    };
    std::optional<size_t> time, input, output;
    struct Row {
        double at = 0;
        size_t line = 0;
        Arrival arrival;
    };
    std::vector<Row> rows;
    size_t number = 0;
    while (!text.empty()) {
        const size_t end = text.find('\n');
        const std::string_view line = trimmed(text.substr(0, end));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        ++number;
        if (line.empty() || line.front() == '#')
            continue;
        const std::vector<std::string_view> cells = cells_of(line);
        if (!time) {
            time = column(cells, kTimes);
            input = column(cells, kInputs);
            output = column(cells, kOutputs);
            if (!time || !input || !output)
                return wrong(number, "the header names no column for " +
                                         std::string(!time    ? "the time"
                                                     : !input ? "the input's tokens"
                                                              : "the output's tokens") +
                                         "; known are " +
                                         (!time    ? listed(kTimes)
                                          : !input ? listed(kInputs)
                                                   : listed(kOutputs)));
            continue;
        }
        if (cells.size() <= std::max({*time, *input, *output}))
            return wrong(number, std::to_string(cells.size()) + " columns, the header has more");
        const auto at = seconds_of(cells[*time]);
        if (!at)
            return wrong(number, "'" + std::string(cells[*time]) +
                                     "' is no time; expected seconds, or 2023-11-16 18:17:03.97");
        const auto in = count_of(cells[*input]), out = count_of(cells[*output]);
        if (!in || !out)
            return wrong(number, "'" + std::string(cells[!in ? *input : *output]) +
                                     "' is no number of tokens");
        rows.push_back({*at, number, Arrival{Nanoseconds(0), *in, *out}});
    }
    if (rows.empty())
        return wrong(number, "no arrivals; expected a header and a row for each request");
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
        return a.at != b.at ? a.at < b.at : a.line < b.line;
    });
    std::vector<Arrival> arrivals;
    for (Row& row : rows) {
        row.arrival.at = Nanoseconds(static_cast<int64_t>((row.at - rows.front().at) * 1e9));
        arrivals.push_back(row.arrival);
    }
    return arrivals;
}

} // namespace berth::simulate
