// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/config.h"
#include "cache/checkpoint/safetensors.h"

#include <cstdint>
#include <string>
#include <vector>

namespace berth {

struct CheckpointFile {
    std::string name; // basename
    std::string path;
    uint64_t bytes = 0;
    int64_t mtime_ns = 0;
    std::string header_hash;
};

struct CheckpointTensor {
    StoredTensor stored;
    size_t file = 0; // index into files
};

struct CheckpointAlias {
    std::string name;
    std::string of; // a tensor of the checkpoint
};

// A side file (config.json, the index): its identity beside its content's hash.
struct SideFile {
    uint64_t bytes = 0;
    int64_t mtime_ns = 0;
    std::string hash; // SHA-256; empty when there is no such file
};

// A checkpoint whose headers, index and configuration fit together: every tensor that the model
// needs is there exactly once, whole, in the declared shape. A value; reads nothing later.
struct Checkpoint {
    std::string folder;
    ModelConfig config;
    std::string config_json;
    SideFile config_file;
    SideFile index_file;
    std::vector<CheckpointFile> files;        // by name
    std::vector<CheckpointTensor> tensors;    // what is loaded: by file, then place
    std::vector<CheckpointAlias> aliases;     // a tied head
    std::vector<std::string> ignored_tensors; // a tied head's own copy, computed tables, layers
                                              // that guess further tokens
    uint64_t ignored_bytes = 0;               // of these tensors
    std::vector<std::string> ignored_files;   // safetensors files beside those that are used
    uint64_t data_bytes() const;              // sum over tensors
};

struct CheckpointOptions {
    SafetensorsOptions safetensors;
};

// `path` is a folder with config.json and safetensors (one file, or shards with their index), or
// one safetensors file with config.json beside it. Reads headers only (and, of a tied head that is
// stored as well, a few pages). Every error names file and
// tensor, what was found, what was expected and what to do. Blocks on the disk.
Result<Checkpoint> open_checkpoint(const std::string& path, const CheckpointOptions& options = {});

// Size and time of a file as of now, no hash; NotFound when it is gone.
Result<SideFile> stat_side_file(const std::string& path);

} // namespace berth
