// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/output.h"

#include "base/units.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace berth::cli {

namespace {

// Code points, which is what a terminal shows of our own texts.
size_t width_of(std::string_view text) {
    return static_cast<size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::string_view colour_of(std::string_view cell) {
    for (const char* good : {"Running", "Succeeded", "Resident", "ok"})
        if (cell == good)
            return "\x1b[32m";
    for (const char* held : {"Pending", "Loading", "Starting", "Preempting", "Paused", "Suspended",
                             "Resuming", "Evicted", "Dropping"})
        if (cell == held)
            return "\x1b[33m";
    for (const char* bad : {"Failed", "FAIL", "Unkillable"})
        if (cell == bad)
            return "\x1b[31m";
    return "";
}

} // namespace

std::string Table::text(bool colour) const {
    std::vector<size_t> widths;
    for (const std::string& column : columns_)
        widths.push_back(width_of(column));
    for (const auto& row : rows_)
        for (size_t i = 0; i < row.size() && i < widths.size(); ++i)
            widths[i] = std::max(widths[i], width_of(row[i]));
    std::string text;
    auto add_row = [&](const std::vector<std::string>& cells, bool coloured) {
        std::string line;
        for (size_t i = 0; i < widths.size(); ++i) {
            const std::string cell = i < cells.size() && !cells[i].empty() ? cells[i] : "-";
            std::string_view shade = coloured ? colour_of(cell) : std::string_view();
            line += shade;
            line += cell;
            line += shade.empty() ? "" : "\x1b[0m";
            if (i + 1 < widths.size())
                line.append(widths[i] - std::min(widths[i], width_of(cell)) + 2, ' ');
        }
        text += line + "\n";
    };
    add_row(columns_, false);
    for (const auto& row : rows_)
        add_row(row, colour);
    return text;
}

std::string milliseconds_text(double ms) {
    if (ms <= 0)
        return "0 ms";
    return format_duration(Nanoseconds(static_cast<int64_t>(ms * 1e6)));
}

std::string age_text(uint64_t ms) {
    uint64_t seconds = ms / 1000;
    if (seconds < 120)
        return fmt::format("{}s", seconds);
    if (seconds < 7200)
        return fmt::format("{}m{}s", seconds / 60, seconds % 60);
    if (seconds < 172'800)
        return fmt::format("{}h{}m", seconds / 3600, seconds / 60 % 60);
    return fmt::format("{}d{}h", seconds / 86'400, seconds / 3600 % 24);
}

std::string utc_text(uint64_t seconds) {
    return fmt::format("{:%Y-%m-%dT%H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

void print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

void print_error(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
}

bool is_terminal(int fd) {
    return ::isatty(fd) == 1;
}

bool may_colour(int fd) {
    const char* no_colour = std::getenv("NO_COLOR");
    const char* terminal = std::getenv("TERM");
    bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
    return is_terminal(fd) && (no_colour == nullptr || *no_colour == '\0') && !dumb;
}

} // namespace berth::cli
