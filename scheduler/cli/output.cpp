// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/output.h"

#include "base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <unistd.h>

namespace berth::cli {

void Output::print(const json::value& value) const {
    std::string written = format == Format::kYaml ? to_yaml(value) : pretty_json(value);
    std::fputs(written.c_str(), stdout);
}

bool may_colour(std::FILE* stream) {
    const char* forbidden = std::getenv("NO_COLOR");
    return ::isatty(::fileno(stream)) == 1 && (forbidden == nullptr || *forbidden == '\0');
}

std::string paint(std::string_view text, Colour colour, bool enabled) {
    if (!enabled || colour == Colour::kNone || text.empty())
        return std::string(text);
    const char* code = colour == Colour::kGood   ? "32"
                       : colour == Colour::kBusy ? "33"
                       : colour == Colour::kBad  ? "31"
                                                 : "1";
    return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

Colour state_colour(std::string_view state) {
    if (state == "Running" || state == "Succeeded" || state == "Resident")
        return Colour::kGood;
    if (state == "Failed")
        return Colour::kBad;
    return state.empty() ? Colour::kNone : Colour::kBusy;
}

size_t shown_width(std::string_view text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }));
}

std::string Table::render(bool colour) const {
    std::vector<size_t> widths(header_.size(), 0);
    for (const auto& row : rows_)
        for (size_t i = 0; i < row.size() && i < widths.size(); ++i)
            widths[i] = std::max(widths[i], shown_width(row[i].text));
    std::vector<size_t> shown;
    for (size_t i = 0; i < header_.size(); ++i)
        if (widths[i] > 0 || rows_.empty()) {
            widths[i] = std::max(widths[i], header_[i].size());
            shown.push_back(i);
        }
    std::string out;
    auto append = [&](size_t i, std::string_view text, Colour in, bool to_the_right, bool last) {
        std::string_view visible = text.empty() ? std::string_view("-") : text;
        std::string blanks(widths[i] - std::min(widths[i], shown_width(visible)), ' ');
        if (to_the_right)
            out += blanks;
        out += paint(visible, in, colour);
        if (!to_the_right && !last)
            out += blanks;
        out += last ? "\n" : "  ";
    };
    auto right = [&](size_t i) {
        return !rows_.empty() && i < rows_.front().size() && rows_.front()[i].to_the_right;
    };
    for (size_t i : shown)
        append(i, header_[i], Colour::kBold, right(i), i == shown.back());
    for (const auto& row : rows_)
        for (size_t i : shown) {
            const Cell cell = i < row.size() ? row[i] : Cell("");
            append(i, cell.text, cell.colour, cell.to_the_right, i == shown.back());
        }
    return out;
}

namespace {

bool is_empty(const json::value& value) {
    return (value.is_array() && value.get_array().empty()) ||
           (value.is_object() && value.get_object().empty());
}

// The library writes 1.5 as 1.5E0, which YAML readers take for text.
std::string scalar(const json::value& value) {
    return value.is_double() ? fmt::format("{}", value.get_double()) : json::serialize(value);
}

void write_json(const json::value& value, size_t depth, std::string& out) {
    std::string indent((depth + 1) * 2, ' ');
    if (is_empty(value) || (!value.is_array() && !value.is_object())) {
        out += scalar(value);
        return;
    }
    bool is_array = value.is_array();
    out += is_array ? "[\n" : "{\n";
    bool first = true;
    auto begin = [&] {
        out += first ? "" : ",\n";
        first = false;
        out += indent;
    };
    if (is_array) {
        for (const json::value& item : value.get_array()) {
            begin();
            write_json(item, depth + 1, out);
        }
    } else {
        for (const auto& [key, item] : value.get_object()) {
            begin();
            out += json::serialize(json::value(key)) + ": ";
            write_json(item, depth + 1, out);
        }
    }
    out += "\n" + std::string(depth * 2, ' ') + (is_array ? "]" : "}");
}

// Text that no YAML reader takes for anything but a string, or else the JSON form of it, which is
// YAML too.
std::string yaml_string(std::string_view text) {
    static constexpr std::string_view kOthers[] = {"true", "false", "null", "yes", "no",
                                                   "on",   "off",   "y",    "n"};
    auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    bool plain = !text.empty() && is_letter(text.front()) &&
                 std::all_of(text.begin(), text.end(), [&](char c) {
                     return is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                            c == '.' || c == '/';
                 });
    std::string lower(text);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (plain && std::find(std::begin(kOthers), std::end(kOthers), lower) == std::end(kOthers))
        return std::string(text);
    return json::serialize(json::value(boost::json::string_view(text.data(), text.size())));
}

void write_yaml(const json::value& value, size_t depth, bool in_list, std::string& out) {
    std::string indent(depth * 2, ' ');
    if (const auto* string = value.if_string()) {
        out += yaml_string({string->data(), string->size()}) + "\n";
    } else if (is_empty(value) || (!value.is_array() && !value.is_object())) {
        out += scalar(value) + "\n";
    } else if (value.is_array()) {
        if (!in_list && depth > 0)
            out += "\n";
        bool first = true;
        for (const json::value& item : value.get_array()) {
            out += (in_list && first ? "" : indent) + "- ";
            first = false;
            write_yaml(item, depth + 1, true, out);
        }
    } else {
        if (!in_list && depth > 0)
            out += "\n";
        bool first = true;
        for (const auto& [key, item] : value.get_object()) {
            out += (in_list && first ? "" : indent) + yaml_string({key.data(), key.size()}) + ":";
            first = false;
            bool nested = (item.is_array() || item.is_object()) && !is_empty(item);
            out += nested ? "" : " ";
            write_yaml(item, depth + 1, false, out);
        }
    }
}

} // namespace

std::string pretty_json(const json::value& value) {
    std::string out;
    write_json(value, 0, out);
    return out + "\n";
}

std::string to_yaml(const json::value& value) {
    std::string out;
    write_yaml(value, 0, false, out);
    return out;
}

const json::value* field(const json::value& of, std::string_view name) {
    const json::object* object = of.if_object();
    if (object == nullptr)
        return nullptr;
    const json::value* found =
        object->if_contains(boost::json::string_view(name.data(), name.size()));
    return found == nullptr || found->is_null() ? nullptr : found;
}

std::string text(const json::value& of, std::string_view name) {
    const json::value* found = field(of, name);
    if (found == nullptr)
        return {};
    if (const auto* string = found->if_string())
        return {string->data(), string->size()};
    return scalar(*found);
}

double number(const json::value& of, std::string_view name) {
    const json::value* found = field(of, name);
    return found != nullptr && found->is_number() ? found->to_number<double>() : 0;
}

bool flag(const json::value& of, std::string_view name) {
    const json::value* found = field(of, name);
    return found != nullptr && found->is_bool() && found->get_bool();
}

std::string bytes(const json::value& of, std::string_view name) {
    const json::value* found = field(of, name);
    if (found == nullptr || !found->is_number())
        return {};
    return format_bytes(static_cast<uint64_t>(std::max(0.0, found->to_number<double>())));
}

std::string duration(const json::value& of, std::string_view name) {
    const json::value* found = field(of, name);
    if (found == nullptr || !found->is_number())
        return {};
    return format_duration(Nanoseconds(static_cast<int64_t>(found->to_number<double>() * 1e6)));
}

const json::array& items(const json::value& of) {
    static const json::array kNone;
    const json::value* found = field(of, "items");
    return found != nullptr && found->is_array() ? found->get_array() : kNone;
}

} // namespace berth::cli
