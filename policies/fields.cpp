// SPDX-License-Identifier: Apache-2.0
#include "policies/fields.h"

#include "policies/yaml.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

namespace berth::policies {

void refuse_yaml(const std::string& file, int line, int column, const std::string& message) {
    std::string where = file;
    if (line > 0)
        where += ":" + std::to_string(line) + ":" + std::to_string(column);
    throw YamlFailure{
        Error{ErrorCode::kInvalidArgument, where + ": " + message, "InvalidDocument", 0}};
}

std::string shown(const YAML::Node& node) {
    if (node.IsMap())
        return "a map";
    if (node.IsSequence())
        return "a list";
    if (!node.IsScalar())
        return "nothing";
    std::string text = node.Scalar().substr(0, 60);
    if (text.size() < node.Scalar().size())
        text += "...";
    return "'" + text + "'";
}

std::string suggestion(std::string_view name, const std::vector<std::string>& known) {
    if (std::string near = nearest_name(name, known); !near.empty())
        return "; did you mean '" + near + "'?";
    if (known.empty())
        return "";
    std::string all;
    for (const std::string& one : known)
        all += (all.empty() ? "" : ", ") + one;
    return "; known: " + all;
}

bool is_name(std::string_view text) {
    if (text.empty() || text.size() > 63)
        return false;
    auto is_alnum = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    };
    if (!is_alnum(text.front()))
        return false;
    for (char c : text)
        if (!is_alnum(c) && c != '.' && c != '_' && c != '-')
            return false;
    return true;
}

std::string resolve_path(const std::string& path, const std::string& folder) {
    if (path.empty() || folder.empty() || path.front() == '/')
        return path;
    return (std::filesystem::path(folder) / path).lexically_normal().string();
}

Fields::Fields(const YAML::Node& map, std::string file, std::string path)
    : file_(std::move(file)), path_(std::move(path)), map_(map) {
    if (!map_.IsMap())
        refuse_at(map_, (path_.empty() ? "the document" : "field '" + path_ + "'") +
                            ": expected a map, found " + shown(map_));
    for (const auto& entry : map_) {
        const YAML::Node key = entry.first;
        if (!key.IsScalar())
            refuse_at(key, "a field's name must be text, found " + shown(key));
        for (const auto& [earlier, unused] : entries_)
            if (earlier.Scalar() == key.Scalar())
                refuse_at(key, "field '" + path_of(key.Scalar()) +
                                   "': given twice; the first is in line " +
                                   std::to_string(earlier.Mark().line + 1));
        entries_.emplace_back(key, entry.second);
    }
}

std::string Fields::path_of(const std::string& field) const {
    return path_.empty() ? field : path_ + "." + field;
}

void Fields::refuse_at(const YAML::Node& node, const std::string& message) const {
    const YAML::Mark mark = node.Mark();
    refuse_yaml(file_, mark.line + 1, mark.column + 1, message);
}

Origin Fields::origin() const {
    return Origin{file_, map_.Mark().line + 1, map_.Mark().column + 1};
}

Origin Fields::origin_of(const std::string& field) const {
    for (const auto& [key, value] : entries_)
        if (key.Scalar() == field)
            return Origin{file_, value.Mark().line + 1, value.Mark().column + 1};
    return origin();
}

void Fields::refuse(const std::string& field, const std::string& why) const {
    const Origin at = origin_of(field);
    refuse_yaml(file_, at.line, at.column, "field '" + path_of(field) + "': " + why);
}

bool Fields::has(std::string_view field) const {
    for (const auto& [key, value] : entries_)
        if (key.Scalar() == field)
            return true;
    return false;
}

const YAML::Node* Fields::find(const std::string& field, bool required) {
    known_.insert(field);
    for (const auto& [key, value] : entries_) {
        if (key.Scalar() != field)
            continue;
        const std::string& tag = value.Tag();
        if (!tag.empty() && tag != "?" && tag != "!")
            refuse_at(value, "field '" + path_of(field) + "': tags are not read here, found '" +
                                 tag + "'");
        return &value;
    }
    if (!required)
        return nullptr;
    // A misspelt field is the likeliest reason for a missing one: name that.
    for (const auto& [key, value] : entries_)
        if (!known_.contains(key.Scalar()) && !nearest_name(key.Scalar(), {field}).empty())
            refuse_at(key, "field '" + path_of(key.Scalar()) + "': unknown field; did you mean '" +
                               field + "'?");
    refuse_at(map_, "field '" + path_of(field) + "': missing");
}

const std::string& Fields::scalar(const std::string& field, const YAML::Node& node,
                                  std::string_view wanted) const {
    if (!node.IsScalar())
        refuse_at(node, "field '" + path_of(field) + "': expected " + std::string(wanted) +
                            ", found " + shown(node));
    return node.Scalar();
}

namespace {

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

std::string Fields::text(const std::string& field) {
    const YAML::Node& found = *find(field, true);
    const std::string& value = scalar(field, found, "text");
    if (value.empty())
        refuse(field, "must not be empty");
    return value;
}

std::string Fields::text(const std::string& field, std::string fallback) {
    return find(field, false) != nullptr ? text(field) : std::move(fallback);
}

bool Fields::boolean(const std::string& field, bool fallback) {
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return fallback;
    const std::string& value = scalar(field, *found, "true or false");
    if (!is_quoted(*found) && value == "true")
        return true;
    if (!is_quoted(*found) && value == "false")
        return false;
    refuse(field, "expected true or false, found " + shown(*found));
}

int64_t Fields::integer(const std::string& field) {
    const YAML::Node& found = *find(field, true);
    const std::string& value = scalar(field, found, "an integer");
    int64_t number = 0;
    const char* end = value.data() + value.size();
    auto [rest, status] = std::from_chars(value.data(), end, number);
    if (status != std::errc() || rest != end || is_quoted(found))
        refuse(field, "expected an integer, found " + shown(found));
    if (has_leading_zero(value))
        refuse(field, "expected a decimal integer without leading zeros, found " + shown(found));
    return number;
}

int64_t Fields::integer(const std::string& field, int64_t fallback) {
    return find(field, false) != nullptr ? integer(field) : fallback;
}

uint64_t Fields::count(const std::string& field, uint64_t fallback) {
    if (find(field, false) == nullptr)
        return fallback;
    const int64_t number = integer(field);
    if (number < 0)
        refuse(field, "expected 0 or more, found '" + std::to_string(number) + "'");
    return static_cast<uint64_t>(number);
}

double Fields::number(const std::string& field, double fallback) {
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return fallback;
    const std::string& value = scalar(field, *found, "a number");
    double number = 0;
    const char* end = value.data() + value.size();
    auto [rest, status] = std::from_chars(value.data(), end, number);
    if (status != std::errc() || rest != end || is_quoted(*found) || has_leading_zero(value) ||
        !std::isfinite(number))
        refuse(field, "expected a number, found " + shown(*found));
    return number;
}

uint64_t Fields::bytes(const std::string& field) {
    const YAML::Node& found = *find(field, true);
    const std::string& value = scalar(field, found, "bytes such as 24Gi");
    if (has_leading_zero(value))
        refuse(field, "expected bytes without leading zeros, found " + shown(found));
    Result<uint64_t> parsed = parse_bytes(value);
    if (!parsed)
        refuse(field, parsed.error().message);
    return *parsed;
}

uint64_t Fields::bytes(const std::string& field, uint64_t fallback) {
    return find(field, false) != nullptr ? bytes(field) : fallback;
}

Nanoseconds Fields::duration(const std::string& field) {
    const YAML::Node& found = *find(field, true);
    const std::string& value = scalar(field, found, "a duration such as 200ms");
    if (has_leading_zero(value))
        refuse(field, "expected a duration without leading zeros, found " + shown(found));
    Result<Nanoseconds> parsed = parse_duration(value);
    if (!parsed)
        refuse(field, parsed.error().message);
    return *parsed;
}

Nanoseconds Fields::duration(const std::string& field, Nanoseconds fallback) {
    return find(field, false) != nullptr ? duration(field) : fallback;
}

size_t Fields::word(const std::string& field, const std::vector<std::string>& words) {
    const YAML::Node& found = *find(field, true);
    const std::string& value = scalar(field, found, "a word");
    for (size_t i = 0; i < words.size(); ++i)
        if (words[i] == value)
            return i;
    refuse(field, "unknown value '" + value + "'" + suggestion(value, words));
}

size_t Fields::word(const std::string& field, const std::vector<std::string>& words,
                    size_t fallback) {
    return find(field, false) != nullptr ? word(field, words) : fallback;
}

std::vector<std::string> Fields::texts(const std::string& field) {
    std::vector<std::string> all;
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return all;
    if (!found->IsSequence())
        refuse(field, "expected a list, found " + shown(*found));
    for (const YAML::Node& item : *found) {
        if (!item.IsScalar())
            refuse_at(item, "field '" + path_of(field) + "': expected text, found " + shown(item));
        all.push_back(item.Scalar());
    }
    return all;
}

void Fields::map(const std::string& field, const std::function<void(Fields&)>& read) {
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return;
    Fields inner(*found, file_, path_of(field));
    read(inner);
    inner.finish();
}

void Fields::maps(const std::string& field, const std::function<void(Fields&)>& read) {
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return;
    if (!found->IsSequence())
        refuse(field, "expected a list, found " + shown(*found));
    size_t index = 0;
    for (const YAML::Node& item : *found) {
        Fields inner(item, file_, path_of(field) + "[" + std::to_string(index++) + "]");
        read(inner);
        inner.finish();
    }
}

std::map<std::string, std::string> Fields::dictionary(const std::string& field) {
    std::map<std::string, std::string> all;
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return all;
    Fields inner(*found, file_, path_of(field));
    for (const auto& [key, value] : inner.entries_)
        all[key.Scalar()] = inner.scalar(key.Scalar(), value, "text");
    return all;
}

YAML::Node Fields::node(const std::string& field) {
    const YAML::Node* found = find(field, false);
    return found != nullptr ? *found : YAML::Node(YAML::NodeType::Undefined);
}

void Fields::finish() const {
    for (const auto& [key, value] : entries_) {
        const std::string& name = key.Scalar();
        if (known_.contains(name))
            continue;
        refuse_at(key, "field '" + path_of(name) + "': unknown field" +
                           suggestion(name, {known_.begin(), known_.end()}));
    }
}

} // namespace berth::policies
