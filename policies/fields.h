// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/spec.h"

#include <yaml-cpp/yaml.h>

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

// A map, at `path` ("spec.memory"), in `file`. Each field is asked for by name; finish() refuses
// the rest with the nearest of the names that were asked for.
class Fields {
  public:
    Fields(const YAML::Node& map, std::string file, std::string path);

    bool has(std::string_view field) const;
    std::string text(const std::string& field); // must be there, not empty
    std::string text(const std::string& field, std::string fallback);
    bool boolean(const std::string& field, bool fallback);
    int64_t integer(const std::string& field);
    int64_t integer(const std::string& field, int64_t fallback);
    uint64_t count(const std::string& field, uint64_t fallback); // 0 or more
    double number(const std::string& field, double fallback);
    uint64_t bytes(const std::string& field, uint64_t fallback);
    uint64_t bytes(const std::string& field);
    Nanoseconds duration(const std::string& field, Nanoseconds fallback);
    Nanoseconds duration(const std::string& field);
    // One of the words; the index into `words`.
    size_t word(const std::string& field, const std::vector<std::string>& words);
    size_t word(const std::string& field, const std::vector<std::string>& words, size_t fallback);
    std::vector<std::string> texts(const std::string& field); // a list of strings; empty if absent
    // A map inside; absent: nothing happens. `read` is followed by finish().
    void map(const std::string& field, const std::function<void(Fields&)>& read);
    // A list of maps.
    void maps(const std::string& field, const std::function<void(Fields&)>& read);
    // Text -> text.
    std::map<std::string, std::string> dictionary(const std::string& field);
    // Anything; an undefined node if absent.
    YAML::Node node(const std::string& field);

    void finish() const;

    Origin origin() const;
    Origin origin_of(const std::string& field) const; // of its value, else of the map
    [[noreturn]] void refuse(const std::string& field, const std::string& why) const;
    std::string path_of(const std::string& field) const;

  private:
    const YAML::Node* find(const std::string& field, bool required);
    const std::string& scalar(const std::string& field, const YAML::Node& node,
                              std::string_view wanted) const;
    [[noreturn]] void refuse_at(const YAML::Node& node, const std::string& message) const;

    std::string file_;
    std::string path_;
    YAML::Node map_;
    std::vector<std::pair<YAML::Node, YAML::Node>> entries_;
    std::set<std::string> known_;
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
// `path` against `folder`, without touching the disk.
std::string resolve_path(const std::string& path, const std::string& folder);

} // namespace berth::policies
