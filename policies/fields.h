// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/shape.h"
#include "policies/spec.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Inside policies/ only: reads one YAML map by named fields, strictly. Nothing here uses yaml-cpp's
// own conversions (they read `yes` as true and `010` as 8) nor its operator[] on maps (which hides
// duplicates): maps are walked as pairs, scalars are read as text.
namespace berth::policies {

// How the reader leaves its own depths; caught in documents.cpp, the one boundary.
struct YamlFailure {
    Error error;
};

enum class Need { kOptional, kRequired };
// Of integers, both ends included.
struct Range {
    int64_t least = INT64_MIN;
    int64_t most = INT64_MAX;
};
inline constexpr Range kCount{0, INT64_MAX};

// A map, at `path` ("spec.memory"), in `file`. Each field is asked for by name; finish() refuses
// the rest with the nearest of the names that were asked for.
//
// Made with a Shape instead of a map it reads nothing and writes down what is asked for: then each
// question is answered with yes, each value is its fallback (or the simplest there is), each list
// has one element, each case is gone through, and refuse() returns. A field that is asked for in
// several ways may have any of these forms. So a reader must ask for every field that it may ever
// read, whatever the answers, and must bear going on after refuse().
class Fields {
  public:
    Fields(const YAML::Node& map, std::string file, std::string path);
    Fields(Shape& shape, std::string path);

    bool has(const std::string& field);
    // Whether it is there in that form.
    bool is_scalar(const std::string& field);
    bool is_list(const std::string& field);
    bool is_map(const std::string& field);

    std::string text(const std::string& field); // must be there, not empty
    std::string text(const std::string& field, std::string fallback);
    std::string name(const std::string& field); // must be there, and a name of ours
    bool boolean(const std::string& field, bool fallback);
    int64_t integer(const std::string& field, Range range = {});
    int64_t integer(const std::string& field, int64_t fallback, Range range = {});
    uint64_t count(const std::string& field, uint64_t fallback, Range range = kCount);
    double number(const std::string& field, double fallback);
    double percentile(const std::string& field, double fallback); // above 0, at most 100
    uint64_t bytes(const std::string& field, uint64_t fallback);
    uint64_t bytes(const std::string& field);
    std::optional<uint64_t> optional_bytes(const std::string& field);
    // `word` or, as it is the default, absent: nothing.
    std::optional<uint64_t> bytes_or(const std::string& field, const std::string& word);
    Nanoseconds duration(const std::string& field, Nanoseconds fallback);
    Nanoseconds duration(const std::string& field);
    Nanoseconds duration_above_0(const std::string& field, Nanoseconds fallback);
    Nanoseconds duration_above_0(const std::string& field);
    // `word`: nothing. "30%": 0.3.
    std::optional<double> percentage_or(const std::string& field, double fallback,
                                        const std::string& word);
    // One of the words; the index into `words`.
    size_t word(const std::string& field, const std::vector<std::string>& words);
    size_t word(const std::string& field, const std::vector<std::string>& words, size_t fallback);
    // The same, and `read` reads the further fields of that case.
    size_t cases(const std::string& field, const std::vector<std::string>& words,
                 const std::function<void(size_t)>& read);
    // A list of the words, none twice; as indexes.
    template <typename Enum>
    std::vector<Enum> words(const std::string& field, const std::vector<std::string>& known,
                            const std::vector<Enum>& fallback) {
        std::vector<size_t> indexes;
        for (Enum one : fallback)
            indexes.push_back(static_cast<size_t>(one));
        std::vector<Enum> all;
        for (size_t index : word_list(field, known, std::move(indexes)))
            all.push_back(static_cast<Enum>(index));
        return all;
    }
    // Refuses a value that is known and not built yet.
    void to_come(const std::string& field, const std::string& value, const std::string& why);

    std::vector<std::string> texts(const std::string& field); // a list of strings; empty if absent
    // The same with one element at least; `hint` says what to write.
    std::vector<std::string> some_texts(const std::string& field, Need need,
                                        const std::string& hint);
    // A map inside; absent: nothing happens. `read` is followed by finish().
    void map(const std::string& field, const std::function<void(Fields&)>& read);
    // The same; absent: an error with `hint`.
    void needed_map(const std::string& field, const std::string& hint,
                    const std::function<void(Fields&)>& read);
    // The same; absent: `read` reads an empty one.
    void map_or_empty(const std::string& field, const std::function<void(Fields&)>& read);
    // A list of maps.
    void maps(const std::string& field, const std::function<void(Fields&)>& read);
    // Text -> text.
    std::map<std::string, std::string> dictionary(const std::string& field);

    void finish() const;

    Origin origin() const;
    Origin origin_of(const std::string& field) const; // of its value, else of the map
    Mark mark_of(const std::string& field) const;
    // Throws, but when recording.
    void refuse(const std::string& field, const std::string& why) const;
    void refuse_item(const std::string& field, size_t index, const std::string& why) const;
    std::string path_of(const std::string& field) const;

  private:
    const YAML::Node* find(const std::string& field, bool required);
    const YAML::Node* look(const std::string& field) const;
    const std::string& scalar(const std::string& field, const YAML::Node& node,
                              std::string_view wanted) const;
    int64_t read_integer(const std::string& field, Range range);
    std::vector<std::string> read_texts(const std::string& field, const YAML::Node& list);
    std::vector<size_t> word_list(const std::string& field, const std::vector<std::string>& known,
                                  std::vector<size_t> fallback);
    Nanoseconds read_duration(const std::string& field, bool above_0);
    void read_inner(const std::string& field, const YAML::Node& map,
                    const std::function<void(Fields&)>& read);
    [[noreturn]] void refuse_at(const YAML::Node& node, const std::string& message) const;
    [[noreturn]] void fail_field(const std::string& field, const std::string& why) const;
    [[noreturn]] void fail_missing(const std::string& field, const std::string& hint) const;
    bool recording() const { return shape_ != nullptr; }
    void record(const std::string& field, Form form, bool required,
                std::optional<std::string> fallback = std::nullopt);
    void record_inner(const std::string& field, Form::Kind kind, bool required,
                      const std::function<void(Fields&)>& read);

    std::string file_;
    std::string path_;
    YAML::Node map_;
    std::vector<std::pair<YAML::Node, YAML::Node>> entries_;
    std::set<std::string> known_;
    Shape* shape_ = nullptr;
};

// Throws for what yaml-cpp must not be given (see scan.cpp).
void scan_yaml(const std::string& text, const std::string& file);
[[noreturn]] void refuse_yaml(const std::string& file, int line, int column,
                              const std::string& message);
// "'yes'", or "a list", "a map", "nothing".
std::string shown(const YAML::Node& node);
// ", did you mean 'x'?" or the known names, whichever helps.
std::string suggestion(std::string_view name, const std::vector<std::string>& known);
// A name of ours: 1 to 63 letters, digits, '.', '_', '-', beginning with a letter or digit.
bool is_name(std::string_view text);

// The readers of each kind's `spec` (metadata.name is already read). `folder` is the file's.
NodeSpec read_node(Fields& spec, const std::string& folder);
PolicySpec read_policy(Fields& spec);
ModelSpec read_model(Fields& spec, const std::string& folder);
InstanceSpec read_instance(Fields& spec, const std::string& folder);
// `devices: ["GPU-...", ...]`, of a Node and of an Instance.
std::vector<std::string> read_device_list(Fields& spec);
// `path` against `folder`, without touching the disk.
std::string resolve_path(const std::string& path, const std::string& folder);

} // namespace berth::policies
