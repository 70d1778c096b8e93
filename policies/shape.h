// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// Inside policies/ only: what a reader asks of a map, written down while it asks (see Fields). The
// JSON Schema is made of it, so that a reader and its schema cannot say different things.
namespace berth::policies {

struct Shape;

// One form that a value may have.
struct Form {
    enum class Kind {
        kText,
        kName,
        kBoolean,
        kInteger,
        kNumber,
        kBytes,
        kDuration,
        kPercentage,
        kWord,  // one of `words`
        kWords, // a list of them, none twice
        kTexts, // a list of texts
        kMap,
        kMaps, // a list of maps
        kDictionary,
    };
    Kind kind = Kind::kText;
    std::vector<std::string> words{};
    size_t items_min = 0;                  // kTexts
    std::optional<double> least{}, most{}; // kInteger, kNumber
    std::shared_ptr<const Shape> inner{};  // kMap, kMaps
    bool operator==(const Form& other) const { return kind == other.kind && words == other.words; }
};

struct FieldShape {
    std::string name;
    bool required = false;
    std::optional<std::string> fallback; // as it is written in YAML
    std::vector<Form> forms;             // any one of them
};

// The fields of a map in the order in which they are asked for. With a `case_field`, its value says
// which further fields there are.
struct Shape {
    std::vector<FieldShape> fields;
    std::string case_field;
    std::vector<Shape> cases;
    std::string word; // of a case: the value that it is for
};

// Of a whole document.
Shape document_shape();

} // namespace berth::policies
