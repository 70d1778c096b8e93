// SPDX-License-Identifier: Apache-2.0
// Words out of a set, lists, and dictionaries: how Fields reads them and writes them down.
#include "policies/fields.h"
#include "policies/yaml.h"

namespace berth::policies {

size_t Fields::word(const std::string& field, const std::vector<std::string>& words) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kWord, .words = words}, true);
        return 0;
    }
    const std::string& value = scalar(field, *find(field, true), "a word");
    for (size_t i = 0; i < words.size(); ++i)
        if (words[i] == value)
            return i;
    fail_field(field, "unknown value " + shown(*look(field)) + suggestion(value, words));
}

size_t Fields::word(const std::string& field, const std::vector<std::string>& words,
                    size_t fallback) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kWord, .words = words}, false, words[fallback]);
        return fallback;
    }
    return find(field, false) != nullptr ? word(field, words) : fallback;
}

size_t Fields::cases(const std::string& field, const std::vector<std::string>& words,
                     const std::function<void(size_t)>& read) {
    const size_t chosen = word(field, words);
    if (!recording()) {
        read(chosen);
        return chosen;
    }
    Shape* whole = shape_;
    whole->case_field = field;
    for (size_t i = 0; i < words.size(); ++i) {
        Shape one;
        one.word = words[i];
        shape_ = &one;
        read(i);
        whole->cases.push_back(std::move(one));
    }
    shape_ = whole;
    return chosen;
}

std::vector<size_t> Fields::word_list(const std::string& field,
                                      const std::vector<std::string>& known,
                                      std::vector<size_t> fallback) {
    if (recording()) {
        std::string all;
        for (size_t index : fallback)
            all += (all.empty() ? "" : ", ") + known[index];
        record(field, Form{.kind = Form::Kind::kWords, .words = known}, false, "[" + all + "]");
        return fallback;
    }
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return fallback;
    std::vector<size_t> all;
    for (const std::string& text : read_texts(field, *found)) {
        const size_t at = all.size();
        const auto one = std::find(known.begin(), known.end(), text);
        if (one == known.end())
            refuse_item(field, at, "unknown value '" + text + "'" + suggestion(text, known));
        const auto index = static_cast<size_t>(one - known.begin());
        if (std::find(all.begin(), all.end(), index) != all.end())
            refuse_item(field, at, "'" + text + "' is given twice");
        all.push_back(index);
    }
    return all;
}

void Fields::to_come(const std::string& field, const std::string& value, const std::string& why) {
    if (is_scalar(field) && !recording() && look(field)->Scalar() == value)
        fail_field(field, "'" + value + "' is still to come: " + why);
}

std::vector<std::string> Fields::read_texts(const std::string& field, const YAML::Node& list) {
    std::vector<std::string> all;
    if (!list.IsSequence())
        fail_field(field, "expected a list, found " + shown(list));
    for (const YAML::Node& item : list) {
        if (!item.IsScalar())
            refuse_at(item, "field '" + path_of(field) + "': expected text, found " + shown(item));
        all.push_back(item.Scalar());
    }
    return all;
}

std::vector<std::string> Fields::texts(const std::string& field) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kTexts}, false);
        return {};
    }
    const YAML::Node* found = find(field, false);
    return found == nullptr ? std::vector<std::string>{} : read_texts(field, *found);
}

std::vector<std::string> Fields::some_texts(const std::string& field, Need need,
                                            const std::string& hint) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kTexts, .items_min = 1}, need == Need::kRequired);
        return {"text"};
    }
    const YAML::Node* found = find(field, false);
    if (found == nullptr && need == Need::kRequired)
        fail_missing(field, hint);
    if (found == nullptr)
        return {};
    std::vector<std::string> all = read_texts(field, *found);
    if (all.empty())
        fail_field(field, "the list is empty; " + hint);
    return all;
}

std::map<std::string, std::string> Fields::dictionary(const std::string& field) {
    if (recording()) {
        record(field, Form{.kind = Form::Kind::kDictionary}, false);
        return {};
    }
    std::map<std::string, std::string> all;
    const YAML::Node* found = find(field, false);
    if (found == nullptr)
        return all;
    Fields inner(*found, file_, path_of(field));
    for (const auto& [key, value] : inner.entries_)
        all[key.Scalar()] = inner.scalar(key.Scalar(), value, "text");
    return all;
}

} // namespace berth::policies
