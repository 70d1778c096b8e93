// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/trace.h"

#include "base/number.h"
#include "base/unique_fd.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <optional>

namespace berth::cli::bench {

namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr size_t kFileBytesMax = size_t{1} << 30;
constexpr uint32_t kTokensMax = 10'000'000;

// Line by line; line ends of both kinds.
class Lines {
  public:
    explicit Lines(std::string_view text) : rest_(text) {}
    std::optional<std::string_view> next() {
        if (rest_.empty())
            return std::nullopt;
        const size_t end = std::min(rest_.find('\n'), rest_.size());
        std::string_view line = rest_.substr(0, end);
        rest_.remove_prefix(std::min(end + 1, rest_.size()));
        if (line.ends_with('\r'))
            line.remove_suffix(1);
        ++number_;
        return line;
    }
    size_t number() const { return number_; } // of the last one given out, from 1

  private:
    std::string_view rest_;
    size_t number_ = 0;
};

tl::unexpected<Error> wrong(const std::string& file, size_t line, std::string what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", file, line, what));
}

// "2023-11-16 18:15:46.6805900" -> seconds since 1970.
std::optional<double> seconds_of(std::string_view text) {
    constexpr std::string_view kShape = "dddd-dd-dd dd:dd:dd";
    if (text.size() < kShape.size())
        return std::nullopt;
    for (size_t n = 0; n < kShape.size(); ++n) {
        const bool is_digit = text[n] >= '0' && text[n] <= '9';
        if (kShape[n] == 'd' ? !is_digit : text[n] != kShape[n])
            return std::nullopt;
    }
    auto number = [text](size_t at, size_t digits) {
        return *number_in<unsigned>(text.substr(at, digits));
    };
    const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(number(0, 4))),
                                           std::chrono::month(number(5, 2)),
                                           std::chrono::day(number(8, 2))};
    if (!date.ok() || number(11, 2) > 23 || number(14, 2) > 59 || number(17, 2) > 60)
        return std::nullopt;
    double fraction = 0;
    if (text.size() > kShape.size()) {
        const auto digits = text.substr(kShape.size() + 1);
        const auto parsed = number_in<uint64_t>(digits);
        if (text[kShape.size()] != '.' || !parsed || digits.size() > 12)
            return std::nullopt;
        fraction = static_cast<double>(*parsed);
        for (size_t n = 0; n < digits.size(); ++n)
            fraction /= 10;
    }
    const auto days = std::chrono::sys_days(date).time_since_epoch().count();
    return static_cast<double>(days) * 86'400 + number(11, 2) * 3600.0 + number(14, 2) * 60.0 +
           number(17, 2) + fraction;
}

std::optional<std::array<std::string_view, 3>> fields_of(std::string_view line) {
    const size_t one = line.find(',');
    const size_t two = one == std::string_view::npos ? one : line.find(',', one + 1);
    if (two == std::string_view::npos || line.find(',', two + 1) != std::string_view::npos)
        return std::nullopt;
    return std::array{line.substr(0, one), line.substr(one + 1, two - one - 1),
                      line.substr(two + 1)};
}

Result<TraceRow> row_of(std::string_view line, const std::string& file, size_t number) {
    const auto fields = fields_of(line);
    if (!fields)
        return wrong(file, number,
                     fmt::format("expected three fields ({}), found '{:.60}'", kHeader, line));
    const auto at = seconds_of((*fields)[0]);
    if (!at)
        return wrong(file, number,
                     fmt::format("expected a time like 2023-11-16 18:15:46.68, found '{:.40}'",
                                 (*fields)[0]));
    TraceRow row{*at, 0, 0};
    for (size_t field : {size_t{1}, size_t{2}}) {
        const auto count = number_in<uint32_t>((*fields)[field]);
        if (!count || *count > kTokensMax)
            return wrong(
                file, number,
                fmt::format("expected a count of tokens, found '{:.40}'", (*fields)[field]));
        (field == 1 ? row.prompt_tokens : row.tokens) = *count;
    }
    return row;
}

} // namespace

Result<std::vector<TraceRow>> parse_trace(std::string_view text, const std::string& file,
                                          size_t first, size_t count) {
    Lines lines(text);
    const auto header = lines.next();
    if (!header || *header != kHeader)
        return wrong(
            file, 1,
            fmt::format("expected the header {}, found '{:.60}'", kHeader, header.value_or("")));
    std::vector<TraceRow> rows;
    size_t seen = 0;
    double before = 0, start = 0;
    while (rows.size() < count) {
        const auto line = lines.next();
        if (!line)
            break;
        if (line->empty())
            continue;
        BERTH_ASSIGN(TraceRow row, row_of(*line, file, lines.number()));
        if (seen > 0 && row.at_s < before)
            return wrong(file, lines.number(), "its time lies before that of the row above");
        before = row.at_s;
        if (seen++ < first)
            continue;
        if (rows.empty())
            start = row.at_s;
        row.at_s -= start;
        rows.push_back(row);
    }
    if (rows.size() < count)
        return wrong(file, lines.number(),
                     fmt::format("the trace ends here: it has {} requests, {} are wanted from row "
                                 "{} on; lower --requests or --trace-row",
                                 seen, count, first));
    return rows;
}

Result<std::vector<TraceRow>> read_trace(const std::string& file, size_t first, size_t count) {
    BERTH_ASSIGN(const std::string text, read_file(file, kFileBytesMax));
    return parse_trace(text, file, first, count);
}

} // namespace berth::cli::bench
