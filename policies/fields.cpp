// SPDX-License-Identifier: Apache-2.0
#include "policies/fields.h"

#include "policies/yaml.h"

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
    constexpr size_t kShownMax = 20;
    std::string all;
    for (size_t i = 0; i < known.size() && i < kShownMax; ++i)
        all += (all.empty() ? "" : ", ") + known[i];
    return "; known: " + all + (known.size() > kShownMax ? ", ..." : "");
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

Fields::Fields(Shape& shape, std::string path) : path_(std::move(path)), shape_(&shape) {}

void Fields::record(const std::string& field, Form form, bool required,
                    std::optional<std::string> fallback) {
    for (FieldShape& one : shape_->fields) {
        if (one.name != field)
            continue;
        if (std::find(one.forms.begin(), one.forms.end(), form) == one.forms.end())
            one.forms.push_back(std::move(form));
        one.required = one.required || required;
        if (!one.fallback)
            one.fallback = std::move(fallback);
        return;
    }
    shape_->fields.push_back({field, required, std::move(fallback), {std::move(form)}});
}

void Fields::record_inner(const std::string& field, Form::Kind kind, bool required,
                          const std::function<void(Fields&)>& read) {
    const auto inner = std::make_shared<Shape>();
    Fields fields(*inner, path_of(field));
    read(fields);
    record(field, Form{.kind = kind, .inner = inner}, required);
}

std::string Fields::path_of(const std::string& field) const {
    return path_.empty() ? field : path_ + "." + field;
}

void Fields::refuse_at(const YAML::Node& node, const std::string& message) const {
    const YAML::Mark mark = node.Mark();
    refuse_yaml(file_, mark.line + 1, mark.column + 1, message);
}

Origin Fields::origin() const {
    if (recording())
        return {};
    return Origin{file_, map_.Mark().line + 1, map_.Mark().column + 1};
}

const YAML::Node* Fields::look(const std::string& field) const {
    for (const auto& [key, value] : entries_)
        if (key.Scalar() == field)
            return &value;
    return nullptr;
}

Origin Fields::origin_of(const std::string& field) const {
    if (const YAML::Node* value = look(field))
        return Origin{file_, value->Mark().line + 1, value->Mark().column + 1};
    return origin();
}

Mark Fields::mark_of(const std::string& field) const {
    const Origin at = origin_of(field);
    return {at.line, at.column};
}

void Fields::fail_field(const std::string& field, const std::string& why) const {
    const Origin at = origin_of(field);
    refuse_yaml(file_, at.line, at.column, "field '" + path_of(field) + "': " + why);
}

void Fields::refuse(const std::string& field, const std::string& why) const {
    if (!recording())
        fail_field(field, why);
}

void Fields::refuse_item(const std::string& field, size_t index, const std::string& why) const {
    if (recording())
        return;
    const YAML::Node* list = look(field);
    if (list == nullptr || !list->IsSequence() || index >= list->size())
        fail_field(field, why);
    refuse_at((*list)[index], "field '" + path_of(field) + "': " + why);
}

bool Fields::has(const std::string& field) {
    known_.insert(field);
    return recording() || look(field) != nullptr;
}

bool Fields::is_scalar(const std::string& field) {
    return has(field) && (recording() || look(field)->IsScalar());
}
bool Fields::is_list(const std::string& field) {
    return has(field) && (recording() || look(field)->IsSequence());
}
bool Fields::is_map(const std::string& field) {
    return has(field) && (recording() || look(field)->IsMap());
}

const YAML::Node* Fields::find(const std::string& field, bool required) {
    known_.insert(field);
    if (const YAML::Node* value = look(field)) {
        const std::string& tag = value->Tag();
        if (!tag.empty() && tag != "?" && tag != "!")
            refuse_at(*value, "field '" + path_of(field) + "': tags are not read here, found '" +
                                  tag + "'");
        return value;
    }
    if (!required)
        return nullptr;
    fail_missing(field, "");
}

// A misspelt field is the likeliest reason for a missing one: names that.
void Fields::fail_missing(const std::string& field, const std::string& hint) const {
    for (const auto& [key, value] : entries_)
        if (!known_.contains(key.Scalar()) && !nearest_name(key.Scalar(), {field}).empty())
            refuse_at(key, "field '" + path_of(key.Scalar()) + "': unknown field; did you mean '" +
                               field + "'?");
    refuse_at(map_, "field '" + path_of(field) + "': missing" + (hint.empty() ? "" : "; " + hint));
}

void Fields::read_inner(const std::string& field, const YAML::Node& map,
                        const std::function<void(Fields&)>& read) {
    Fields inner(map, file_, path_of(field));
    read(inner);
    inner.finish();
}

void Fields::map(const std::string& field, const std::function<void(Fields&)>& read) {
    if (recording())
        return record_inner(field, Form::Kind::kMap, false, read);
    if (const YAML::Node* found = find(field, false))
        read_inner(field, *found, read);
}

void Fields::needed_map(const std::string& field, const std::string& hint,
                        const std::function<void(Fields&)>& read) {
    if (recording())
        return record_inner(field, Form::Kind::kMap, true, read);
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        fail_missing(field, hint);
    read_inner(field, *found, read);
}

void Fields::map_or_empty(const std::string& field, const std::function<void(Fields&)>& read) {
    if (recording())
        return record_inner(field, Form::Kind::kMap, false, read);
    if (const YAML::Node* found = find(field, false))
        return read_inner(field, *found, read);
    Fields nothing(YAML::Node(YAML::NodeType::Map), file_, path_of(field));
    read(nothing);
}

void Fields::maps(const std::string& field, const std::function<void(Fields&)>& read) {
    if (recording())
        return record_inner(field, Form::Kind::kMaps, false, read);
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return;
    if (!found->IsSequence())
        fail_field(field, "expected a list, found " + shown(*found));
    size_t index = 0;
    for (const YAML::Node& item : *found)
        read_inner(field + "[" + std::to_string(index++) + "]", item, read);
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
