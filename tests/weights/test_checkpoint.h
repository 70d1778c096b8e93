// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Makes small checkpoints, and broken ones, for the tests.
namespace berth::testing {

// A folder of its own that is removed with it.
class TempFolder {
  public:
    TempFolder();
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    ~TempFolder();
    const std::string& path() const { return path_; }
    std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

  private:
    std::string path_;
};

void write_bytes(const std::string& path, std::string_view bytes);
std::string read_bytes(const std::string& path);
// Moves a file's time on by a second, so that no clock's grain hides a change.
void touch_later(const std::string& path);

struct TestTensor {
    std::string name;
    std::string dtype;
    std::vector<uint64_t> shape;
    std::string bytes;
};
// Filled with bytes that depend on the name; floats are small and finite.
TestTensor make_tensor(std::string name, std::string dtype, std::vector<uint64_t> shape);

// The whole file: eight bytes of length, the header, the data.
std::string safetensors_file(std::string_view header, std::string_view data);
std::string safetensors_file(const std::vector<TestTensor>& tensors);
std::string safetensors_header(const std::vector<TestTensor>& tensors);

// A tiny decoder (two layers; the second has experts where the architecture knows them) that a test
// bends before it writes it.
struct TestCheckpoint {
    TempFolder folder;
    json::object config;
    std::vector<TestTensor> tensors;

    explicit TestCheckpoint(std::string_view architecture = "LlamaForCausalLM", bool tied = false,
                            std::string_view dtype = "F32");
    // Makes the tensors anew, as `config` now says; quantised ones in F8_E4M3 with F32 factors.
    void fill(std::string_view dtype = "F32");
    // Adds the quantization_config of block-wise FP8 and makes the tensors anew.
    void quantise_by_blocks(std::string_view dtype = "BF16");
    TestTensor& tensor(std::string_view name);
    void erase(std::string_view name);
    void write_config() const;
    void write_single() const; // config and model.safetensors
    // config, shards "model-0000N-of-0000M.safetensors" with the tensors in order, and the index.
    void write_sharded(size_t shards) const;
    void write_index(const std::map<std::string, std::string>& file_of) const;
    std::map<std::string, std::string> file_of(size_t shards) const;
    const std::string& path() const { return folder.path(); }
};

} // namespace berth::testing
