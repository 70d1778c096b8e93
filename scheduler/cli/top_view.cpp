// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/top_view.h"

#include "base/units.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/styled_line.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

namespace berth::cli {

namespace {

constexpr size_t kNameWidth = 12; // of a device, before its bar
constexpr size_t kLastMin = 4;    // lines of what happened, if there is so much
constexpr std::array<std::string_view, 4> kClassShades = {"\x1b[35m", "\x1b[36m", "\x1b[33m",
                                                          "\x1b[32m"};

// A part of a device: its bytes, and how it is drawn.
struct Part {
    std::string label;
    char letter = ' ';
    std::string_view shade;
    uint64_t bytes = 0;
};

json::array list_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(field);
    return found != nullptr && found->is_array() ? found->get_array() : json::array();
}

std::string_view shade_of(std::string_view state) {
    if (state == "Running" || state == "Succeeded")
        return kGreen;
    if (state == "Failed" || state == "Unkillable")
        return kRed;
    return kYellow;
}

// Bytes in five columns: "1.5G", "960M", "0".
std::string short_bytes(uint64_t bytes) {
    constexpr std::string_view kUnits = "BKMGTP";
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value >= 1000 && unit + 1 < kUnits.size()) {
        value /= 1024;
        ++unit;
    }
    if (unit == 0)
        return fmt::format("{}", bytes);
    return value < 9.95 ? fmt::format("{:.1f}{}", value, kUnits[unit])
                        : fmt::format("{:.0f}{}", value, kUnits[unit]);
}

std::string rate_text(std::optional<double> rate) {
    if (!rate)
        return "-";
    return *rate >= 100 ? fmt::format("{:.0f}", *rate) : fmt::format("{:.1f}", *rate);
}

std::map<std::string, std::string> classes_of(const json::object& node) {
    std::map<std::string, std::string> classes;
    for (const json::value& one : list_at(node, "instances"))
        if (one.is_object())
            classes[text_at(one.get_object(), "name")] = text_at(one.get_object(), "priorityClass");
    return classes;
}

// The names of all classes that anybody is of, each with the same shade in every picture.
std::vector<std::string> class_names(const std::map<std::string, std::string>& classes) {
    std::vector<std::string> names;
    for (const auto& [instance, name] : classes)
        if (std::find(names.begin(), names.end(), name) == names.end())
            names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<Part> parts_of(const json::object& device,
                           const std::map<std::string, std::string>& classes) {
    std::vector<Part> parts{{"weights", 'W', "\x1b[34m", number_at(device, "weightBytes")}};
    const std::vector<std::string> names = class_names(classes);
    for (size_t n = 0; n < names.size(); ++n)
        parts.push_back({names[n], names[n].empty() ? '?' : names[n].front(),
                         kClassShades.at(n % kClassShades.size()), 0});
    Part other{"overhead", 'x', "\x1b[31m", 0}, reserve{"reserve", 'R', kDim, 0};
    for (const json::value& value : list_at(device, "owners")) {
        if (!value.is_object())
            continue;
        const json::object& owner = value.get_object();
        const std::string kind = text_at(owner, "kind");
        const uint64_t bytes = number_at(owner, "bytes");
        if (kind == "overhead" || kind == "staging")
            other.bytes += bytes;
        if (kind == "reserve")
            reserve.bytes += bytes;
        if (kind != "grant")
            continue;
        const auto found = classes.find(text_at(owner, "name"));
        for (size_t n = 0; n < names.size(); ++n)
            if (found != classes.end() && found->second == names[n])
                parts[n + 1].bytes += bytes;
    }
    parts.push_back(other);
    parts.push_back(reserve);
    return parts;
}

// Each part gets its share of the columns, at least one if there is anything of it.
void add_bar(StyledLine& line, const std::vector<Part>& parts, uint64_t total, size_t columns,
             bool colour) {
    line.add("[");
    size_t left = columns;
    for (const Part& part : parts) {
        if (part.bytes == 0 || total == 0)
            continue;
        const double share = static_cast<double>(part.bytes) / static_cast<double>(total);
        const auto wanted = static_cast<size_t>(std::lround(share * static_cast<double>(columns)));
        const size_t width = std::min(left, std::max<size_t>(wanted, 1));
        left -= width;
        std::string piece;
        for (size_t n = 0; n < width; ++n)
            piece += colour ? "█" : std::string(1, part.letter);
        line.add(piece, part.shade);
    }
    line.add(std::string(left, '.'), kDim).add("]");
}

void add_device(std::vector<StyledLine>& lines, const json::object& device,
                const std::map<std::string, std::string>& classes, const TopScreen& screen,
                bool with_legend) {
    const uint64_t total = number_at(device, "totalBytes");
    const std::vector<Part> parts = parts_of(device, classes);
    std::string id = text_at(device, "id");
    if (id.size() > kNameWidth) // a GPU's UUID: its end is what tells it from others
        id = "~" + id.substr(id.size() - kNameWidth + 1);
    const std::string free = fmt::format(
        " {:>5} free of {}", short_bytes(number_at(device, "freeBytes")), short_bytes(total));
    StyledLine line(screen.width);
    line.cell(id, kNameWidth, kBold).add(" ");
    const size_t room = line.left();
    add_bar(line, parts, total, room > free.size() + 12 ? room - free.size() - 2 : 10,
            screen.colour);
    line.add(free);
    lines.push_back(line);
    if (flag_at(device, "cordoned")) {
        StyledLine note(screen.width);
        const std::string drain = text_at(device, "drainedBy");
        note.cell("", kNameWidth + 1)
            .add(drain.empty() ? "cordoned: " : "being drained (" + drain + "): ", kRed)
            .add(text_at(device, "cordonReason"));
        lines.push_back(note);
    }
    if (!with_legend)
        return;
    StyledLine legend(screen.width);
    legend.cell("", kNameWidth + 1);
    for (const Part& part : parts)
        if (part.bytes > 0)
            legend.add(screen.colour ? "█ " : std::string(1, part.letter) + " ", part.shade)
                .add(part.label + " " + short_bytes(part.bytes) + "  ");
    lines.push_back(legend);
}

StyledLine headline(const TopPicture& picture, const TopScreen& screen) {
    const json::object& node = picture.node;
    StyledLine line(screen.width);
    line.add("berth " + text_at(node, "name") + "  ", kBold);
    if (picture.trouble.empty())
        line.add(flag_at(node, "ready") ? "ready" : "not ready",
                 flag_at(node, "ready") ? kGreen : kYellow);
    else
        line.add(picture.trouble, kRed);
    std::string more = "  up " + age_text(number_at(node, "uptimeMs"));
    if (const std::string mode = text_at(node, "mode"); !mode.empty() && mode != "Enforce")
        more += "  mode " + mode;
    more += fmt::format("  {} engines  {} resident", number_at(node, "sessions"),
                        short_bytes(number_at(node, "rssBytes")));
    line.add(more);
    if (line.left() > picture.time.size())
        line.right(picture.time, line.left());
    return line;
}

// Columns of fixed width; what is left is the reason's.
struct Widths {
    size_t name, of_class, device;
};

StyledLine instance_head(const TopScreen& screen, const Widths& widths) {
    StyledLine line(screen.width);
    line.cell("INSTANCE", widths.name, kReverse)
        .add(" ", kReverse)
        .cell("CLASS", widths.of_class, kReverse)
        .add(" ", kReverse)
        .cell("STATE", 10, kReverse)
        .add(" ", kReverse)
        .cell("DEVICE", widths.device, kReverse)
        .right("GRANT", 6, kReverse)
        .right("RUN/WAIT", 9, kReverse)
        .right("TOK/S", 7, kReverse)
        .right("GATE/S", 7, kReverse)
        .add("  ", kReverse);
    line.cell("WHY", line.left(), kReverse);
    return line;
}

StyledLine instance_line(const json::object& item, const TopPicture& picture,
                         const TopScreen& screen, const Widths& widths) {
    StyledLine line(screen.width);
    json::object counters;
    if (const auto* found = item.if_contains("counters"); found && found->is_object())
        counters = found->get_object();
    const std::string name = text_at(item, "name"), state = text_at(item, "state");
    const auto rates = picture.rates.find(name);
    const bool has_rates = rates != picture.rates.end();
    const bool connected = flag_at(item, "connected");
    std::string why = text_at(item, "reason");
    if (why.empty())
        why = text_at(item, "substate");
    if (flag_at(item, "onHold") && why != "OnHold")
        why += why.empty() ? "on hold" : ", on hold";
    if (const std::string message = text_at(item, "message");
        state != "Running" && !message.empty())
        why += (why.empty() ? "" : ": ") + message;
    const uint64_t grant = number_at(item, "grantBytes");
    line.cell(name, widths.name)
        .add(" ")
        .cell(text_at(item, "priorityClass"), widths.of_class)
        .add(" ")
        .cell(state, 10, shade_of(state))
        .add(" ")
        .cell(text_at(item, "device").empty() ? "-" : text_at(item, "device"), widths.device)
        .right(grant > 0 ? short_bytes(grant) : "-", 6)
        .right(connected ? fmt::format("{}/{}", number_at(counters, "requestsRunning"),
                                       number_at(counters, "requestsWaiting"))
                         : "-",
               9)
        .right(rate_text(has_rates ? std::optional(rates->second.tokens_per_s) : std::nullopt), 7)
        .right(rate_text(has_rates ? std::optional(rates->second.pauses_per_s) : std::nullopt), 7)
        .add("  ")
        .add(why, kDim);
    return line;
}

// What happened last: events and decisions by their time.
std::vector<StyledLine> last_lines(const TopPicture& picture, const TopScreen& screen) {
    std::vector<std::pair<std::string, StyledLine>> found;
    for (const json::value& value : picture.events) {
        if (!value.is_object())
            continue;
        const json::object& one = value.get_object();
        const std::string time = text_at(one, "time"); // "2026-11-29T23:18:01.123Z"
        StyledLine line(screen.width);
        line.add(time.size() > 19 ? time.substr(11, 8) : time, kDim)
            .add(" " + text_at(one, "object") + " ")
            .add(text_at(one, "reason"), text_at(one, "kind") == "Warning" ? kRed : kGreen)
            .add(" " + text_at(one, "message"));
        found.emplace_back(time.substr(0, 19), line);
    }
    for (const json::value& value : picture.decisions) {
        if (!value.is_object())
            continue;
        const json::object& one = value.get_object();
        const uint64_t seconds = number_at(one, "timeMs") / 1000;
        const std::string time = utc_text(seconds);
        StyledLine line(screen.width);
        line.add(time.substr(11, 8), kDim)
            .add(" " + text_at(one, "object") + " ")
            .add(text_at(one, "kind") + (flag_at(one, "carriedOut") ? "" : "?"), kBold)
            .add(" " + (text_at(one, "winner").empty() ? "" : text_at(one, "winner") + ": ") +
                 text_at(one, "outcome"));
        found.emplace_back(time, line);
    }
    std::vector<size_t> order(found.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&found](size_t a, size_t b) {
        return std::tie(found[a].first, a) < std::tie(found[b].first, b);
    });
    std::vector<StyledLine> lines;
    for (size_t n : order)
        lines.push_back(std::move(found[n].second));
    return lines;
}

std::vector<json::object> by_priority(const json::object& node) {
    std::vector<json::object> instances;
    for (const json::value& one : list_at(node, "instances"))
        if (one.is_object())
            instances.push_back(one.get_object());
    std::sort(instances.begin(), instances.end(), [](const auto& a, const auto& b) {
        const double of_a = real_at(a, "priority"), of_b = real_at(b, "priority");
        return of_a != of_b ? of_a > of_b : text_at(a, "name") < text_at(b, "name");
    });
    return instances;
}

size_t widest(const std::vector<json::object>& items, const char* field, size_t least,
              size_t most) {
    size_t width = least;
    for (const json::object& one : items)
        width = std::max(width, columns_of(text_at(one, field)));
    return std::min(width, most);
}

// The first of `items` that fit; the last line says how many do not.
void add_some(std::vector<StyledLine>& lines, const std::vector<StyledLine>& items, size_t room,
              size_t width, const char* what) {
    const size_t shown = items.size() <= room ? items.size() : (room > 0 ? room - 1 : 0);
    lines.insert(lines.end(), items.begin(), items.begin() + static_cast<long>(shown));
    if (shown < items.size() && room > 0)
        lines.push_back(StyledLine(width).add(
            fmt::format("... and {} more {}", items.size() - shown, what), kDim));
}

} // namespace

std::vector<std::string> top_lines(const TopPicture& picture, const TopScreen& screen) {
    std::vector<StyledLine> lines{headline(picture, screen)};
    const auto classes = classes_of(picture.node);
    const json::array devices = list_at(picture.node, "devices");
    const bool roomy = devices.size() * 3 + 8 <= screen.height;
    std::vector<StyledLine> bars;
    for (size_t n = 0; n < devices.size(); ++n)
        if (devices[n].is_object())
            add_device(bars, devices[n].get_object(), classes, screen,
                       roomy || n + 1 == devices.size());
    add_some(lines, bars, std::max<size_t>(screen.height / 2, 3), screen.width, "of devices");
    const std::vector<json::object> instances = by_priority(picture.node);
    const Widths widths{widest(instances, "name", 8, screen.width > 100 ? 24 : 14),
                        widest(instances, "priorityClass", 5, 8),
                        widest(instances, "device", 6, screen.width > 100 ? 16 : 8)};
    lines.push_back(instance_head(screen, widths));
    std::vector<StyledLine> rows;
    for (const json::object& one : instances)
        rows.push_back(instance_line(one, picture, screen, widths));
    if (rows.empty())
        rows.push_back(StyledLine(screen.width).add("no instances", kDim));
    const std::vector<StyledLine> last = last_lines(picture, screen);
    const size_t footer = screen.keys ? 1 : 0;
    const size_t used = lines.size() + footer + 1; // and the head of what happened
    const size_t room = screen.height > used ? screen.height - used : 0;
    const size_t for_last = std::min(last.size(), kLastMin);
    add_some(lines, rows, room > for_last ? room - for_last : 0, screen.width, "instances");
    const size_t after = lines.size() + footer + 1;
    if (after < screen.height && !last.empty()) {
        StyledLine head(screen.width);
        lines.push_back(head.cell("LAST", screen.width, kReverse));
        const size_t count = std::min(last.size(), screen.height - after);
        lines.insert(lines.end(), last.end() - static_cast<long>(count), last.end());
    }
    if (screen.keys) {
        while (lines.size() + 1 < screen.height)
            lines.push_back(StyledLine(screen.width));
        lines.push_back(StyledLine(screen.width).add("q quits", kDim));
    }
    std::vector<std::string> texts;
    for (size_t n = 0; n < lines.size() && n < screen.height; ++n)
        texts.push_back(lines[n].text(screen.colour));
    return texts;
}

} // namespace berth::cli
