// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/checkpoint.h"
#include "cache/weights/recipe.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// What makes two weight sets the same. A fingerprint is a JSON document of a load's inputs (who
// makes it, from which files, how sliced and in which element type, for which platform) and the
// SHA-256 over it, keys sorted. No tensor byte is read for it. The document's "seen" part (where
// the files lay, the sizes and times of side files) is neither hashed nor compared.
namespace berth {

inline constexpr std::string_view kLayoutTag = "berth-1";
// Of the producer: rises when the same inputs would give other bytes than before.
inline constexpr std::string_view kProducerName = "berth-loader";
inline constexpr std::string_view kProducerVersion = "1";

// The platform that a set is made for; a field that is empty in what is wanted accepts anything.
struct WeightEnvironment {
    std::string device_kind;           // "host" or "cuda"
    std::string compute_capability;    // "9.0"
    std::string cuda_version;          // "13.0"
    std::string torch_version = "any"; // accepts, and is accepted by, anything
};

struct Fingerprint {
    std::string document; // canonical JSON, "seen" included
    std::string sha256;   // 64 digits
    std::string id() const { return sha256.substr(0, 16); }
};

Fingerprint fingerprint_of(const Checkpoint& checkpoint, const WeightRecipe& recipe,
                           const WeightEnvironment& environment);
// From disk, headers only, every check of open_checkpoint included. Blocks.
Result<Fingerprint> describe(const std::string& path, const WeightRecipe& recipe,
                             const WeightEnvironment& environment);
// The hash of a document, "seen" left out.
Result<std::string> hash_of_document(std::string_view document);

// The hash of what a document says of the model itself: without how it is sliced, laid out, and for
// which platform. Where it is the same a token means the same.
Result<std::string> hash_of_model(std::string_view document);

struct FieldDifference {
    std::string field; // "environment.computeCapability", "checkpoint.files.model.safetensors.size"
    std::string cached;
    std::string wanted;   // "" on either side: absent there
    bool is_gone = false; // a file that cannot be looked at now (changes_on_disk alone)
};
// Empty when a cached set may be used for what is wanted.
Result<std::vector<FieldDifference>> compare(std::string_view cached, std::string_view wanted);
// One line a field: name, cached, wanted.
std::string difference_table(const std::vector<FieldDifference>& differences);

// Whether the files that a document was made from are unchanged, by size and time alone: no byte is
// read. `path` is the folder or the file as it was given to describe(). The differences name what
// changed. Blocks on the disk's directory.
Result<std::vector<FieldDifference>> changes_on_disk(std::string_view document,
                                                     const std::string& path);
// The same as yes or no; a file that cannot be looked at is a change.
bool still_same(std::string_view document, const std::string& path);

} // namespace berth
