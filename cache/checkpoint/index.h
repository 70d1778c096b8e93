// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

// A sharded checkpoint's index: which file holds which tensor. It is the list of what may be loaded
// from each file.
struct CheckpointIndex {
    std::map<std::string, std::string> file_of; // tensor -> basename
    std::vector<std::string> files;             // basenames, sorted, each once
};

// Refuses file names that are not plain basenames, tensors that are named twice, and an empty map.
Result<CheckpointIndex> parse_index(std::string_view text, std::string_view shown);

// All files are there, or: IncompleteDownload (files are missing), StaleIndex (files are missing,
// and there are others that the index does not know). `present` are the folder's safetensors files.
Status check_index_files(const CheckpointIndex& index, const std::vector<std::string>& present,
                         std::string_view shown);

} // namespace berth
