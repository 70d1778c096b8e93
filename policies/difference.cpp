// SPDX-License-Identifier: Apache-2.0
#include "policies/difference.h"

#include "policies/yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <utility>

namespace berth::policies {

namespace {

// A document's fields by their paths, in its order.
struct Flat {
    std::string document;
    std::vector<std::pair<std::string, std::string>> fields;
};

// On one line: "[a, b]", "{class: online, on: QueueDepth}".
std::string line_of(const YAML::Node& node) {
    std::string text;
    if (node.IsMap()) {
        for (const auto& entry : node)
            text +=
                (text.empty() ? "" : ", ") + entry.first.Scalar() + ": " + line_of(entry.second);
        return "{" + text + "}";
    }
    if (node.IsSequence()) {
        for (const YAML::Node& item : node)
            text += (text.empty() ? "" : ", ") + line_of(item);
        return "[" + text + "]";
    }
    return node.IsScalar() ? node.Scalar() : "";
}

const YAML::Node* field_of(const YAML::Node& map, const char* name, YAML::Node& place) {
    for (const auto& entry : map)
        if (entry.first.Scalar() == name) {
            place.reset(entry.second);
            return &place;
        }
    return nullptr;
}

void flatten(const YAML::Node& node, const std::string& path, Flat& out) {
    if (node.IsMap()) {
        for (const auto& entry : node)
            flatten(entry.second,
                    path.empty() ? entry.first.Scalar() : path + "." + entry.first.Scalar(), out);
        return;
    }
    if (!node.IsSequence() || node.size() == 0 || !(*node.begin()).IsMap()) {
        out.fields.emplace_back(path, line_of(node));
        return;
    }
    for (const YAML::Node& item : node) {
        YAML::Node name;
        if (field_of(item, "name", name) != nullptr)
            flatten(item, path + "[" + name.Scalar() + "]", out);
        else // without a name it is what it says
            out.fields.emplace_back(path + "[" + line_of(item) + "]", line_of(item));
    }
}

std::vector<Flat> flat_documents(const Documents& documents) {
    std::vector<Flat> all;
    for (const YAML::Node& root : YAML::LoadAll(effective_yaml(documents))) {
        Flat one;
        flatten(root, "", one);
        std::string kind, name;
        for (const auto& [field, value] : one.fields) {
            kind = field == "kind" ? value : kind;
            name = field == "metadata.name" ? value : name;
        }
        one.document = kind;
        if (kind == "Model" || kind == "Instance")
            one.document.append("/").append(name);
        all.push_back(std::move(one));
    }
    return all;
}

const Flat* find_document(const std::vector<Flat>& all, const std::string& document) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Flat& one) { return one.document == document; });
    return found == all.end() ? nullptr : &*found;
}

// "spec.triggers[{...}]" is shown as an element that comes or goes of "spec.triggers".
std::string shown_field(const std::string& field) {
    const size_t nameless = field.find("[{");
    return nameless == std::string::npos ? field : field.substr(0, nameless);
}

void compare(const Flat& before, const Flat& after, std::vector<FieldChange>& out) {
    std::map<std::string, std::string> old(before.fields.begin(), before.fields.end());
    for (const auto& [field, value] : after.fields) {
        const auto same = old.find(field);
        const std::string was = same == old.end() ? "" : same->second;
        if (was != value)
            out.push_back({after.document, shown_field(field), was, value});
        if (same != old.end())
            old.erase(same);
    }
    // The rest is gone; an empty list is one more word for that.
    for (const auto& [field, value] : before.fields)
        if (old.contains(field) && value != "[]")
            out.push_back({after.document, shown_field(field), value, ""});
}

std::vector<FieldChange> compare_all(const std::vector<Flat>& before,
                                     const std::vector<Flat>& after) {
    std::vector<FieldChange> changes;
    for (const Flat& one : after) {
        if (const Flat* old = find_document(before, one.document))
            compare(*old, one, changes);
        else
            changes.push_back({one.document, "", "", "new"});
    }
    for (const Flat& one : before)
        if (find_document(after, one.document) == nullptr)
            changes.push_back({one.document, "", "present", ""});
    return changes;
}

} // namespace

Difference difference_between(const Documents& before, const Documents& after) {
    Difference out;
    out.changes = compare_all(flat_documents(before), flat_documents(after));
    std::erase_if(out.changes,
                  [](const FieldChange& one) { return one.before.empty() && one.after == "[]"; });
    for (const InstanceSpec& one : after.instances) {
        const InstanceSpec* old = before.find_instance(one.name);
        if (old == nullptr)
            out.added.push_back(one.name);
        else if (process_digest(*old, before.find_model(old->model)) !=
                 process_digest(one, after.find_model(one.model)))
            out.restarted.push_back(one.name);
    }
    for (const InstanceSpec& one : before.instances)
        if (after.find_instance(one.name) == nullptr)
            out.removed.push_back(one.name);
    return out;
}

} // namespace berth::policies
