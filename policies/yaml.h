// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/spec.h"

#include <string>
#include <string_view>
#include <vector>

// The strict reader of Berth's YAML. Unknown, duplicate, missing and ill-typed fields, names that
// lead nowhere, impossible numbers and what is still to come are errors of the form
//
//     policies/a.yaml:12:5: field 'spec.preemtion': unknown field; did you mean 'preemption'?
//
// Pure but for load_paths and load_node, which read the files' text. Plain scalars are read by our
// own rules: only `true` and `false` are booleans, numbers are decimal, so that `yes` and `010` are
// errors.
namespace berth::policies {

inline constexpr size_t kYamlBytesMax = 1 << 20; // of one file
inline constexpr size_t kDocumentsMax = 4000;    // of one node
inline constexpr size_t kYamlFilesMax = 1000;    // of one load

// Reads and checks a whole: every named class and model must be in `text`. Relative paths (a
// Model's path, a Node's policies, an engine's working directory) are relative to `file`'s folder.
Result<Documents> parse_documents(std::string_view text, const std::string& file);

// Reads a part: names may lead to documents elsewhere. To be merged, then checked.
Result<Documents> parse_fragment(std::string_view text, const std::string& file);
struct SourceText {
    std::string file;
    std::string text;
};
// The same of several files; one document twice among them is an error.
Result<Documents> parse_together(const std::vector<SourceText>& texts);
// All names lead somewhere and the numbers fit each other; fills in the default class of instances
// that name none.
Status check_documents(Documents& documents);
// How many processes it is, on how many devices: its Model says the one, its own document may say
// the other. Part of check_documents; again where the Model may have changed since.
Status complete_ranks(InstanceSpec& one, const Documents& documents);
// A standby is what the other is, but for its name, its grant and, if it names any, its devices.
InstanceSpec standby_for(const InstanceSpec& one, const InstanceSpec& active);
// What is right and yet can hardly be meant (a class that can never preempt anyone), each with its
// place, for people to read.
std::vector<std::string> advice(const Documents& documents);
// `update`'s documents over `base`'s of the same kind and name (what `berth apply` means).
// Not yet checked.
Documents overlay(Documents base, const Documents& update);

// Files, and folders with *.yaml and *.yml (by name, not deeper). The same document twice, or the
// same file, is an error that names both places.
Result<Documents> load_paths(const std::vector<std::string>& paths);
// The daemon's own file with its Node, and what its spec.policies names. NotFound and
// InvalidArgument; a Node whose policies lead back to its own file is one.
Result<Documents> load_node(const std::string& config_file);

// The documents with every default written out; reads back to an equal value.
std::string effective_yaml(const Documents& documents);
// The one policy, or instance, alone.
std::string effective_yaml(const PolicySpec& policy);
std::string effective_yaml(const InstanceSpec& instance);

// The text of several documents without the Instance of that name: its lines are left empty, so
// that all others keep their places. Not checked; the same text where it is not found.
std::string without_instance(std::string_view text, const std::string& name);

// A JSON Schema (draft 7) of all kinds, or of one; for editors. Made by the readers themselves.
// What it accepts may still be refused: it knows nothing of names, of sums, and of what a path
// holds.
Result<std::string> json_schema(std::string_view kind = {});

// The known name nearest to `name`, or "" when none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

} // namespace berth::policies
