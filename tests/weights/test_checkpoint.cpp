// SPDX-License-Identifier: Apache-2.0
#include "tests/weights/test_checkpoint.h"

#include "cache/checkpoint/config.h"
#include "cache/checkpoint/dtype.h"
#include "cache/checkpoint/expected_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace berth::testing {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "berth-weights-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
        throw std::runtime_error("cannot make a temporary folder");
    path_ = pattern;
}

TempFolder::~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

void write_bytes(const std::string& path, std::string_view bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file)
        throw std::runtime_error("cannot write " + path);
}

std::string read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void touch_later(const std::string& path) {
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
}

TestTensor make_tensor(std::string name, std::string dtype, std::vector<uint64_t> shape) {
    TestTensor tensor{std::move(name), std::move(dtype), std::move(shape), {}};
    uint64_t bits = bits_of(dtype_from(tensor.dtype));
    for (uint64_t axis : tensor.shape)
        bits *= axis;
    tensor.bytes.resize(bits / 8);
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(tensor.name)));
    std::uniform_real_distribution<float> small(-1.0F, 1.0F);
    if (tensor.dtype == "F32" || tensor.dtype == "BF16") {
        size_t width = tensor.dtype == "F32" ? 4 : 2;
        for (size_t at = 0; at < tensor.bytes.size(); at += width) {
            float value = small(random);
            // A bfloat16 is the upper half of a float32.
            std::memcpy(tensor.bytes.data() + at, reinterpret_cast<char*>(&value) + 4 - width,
                        width);
        }
    } else {
        for (char& byte : tensor.bytes)
            byte = static_cast<char>(random());
    }
    return tensor;
}

std::string safetensors_header(const std::vector<TestTensor>& tensors) {
    json::object header;
    header["__metadata__"] = {{"format", "pt"}};
    uint64_t at = 0;
    for (const TestTensor& tensor : tensors) {
        json::array shape(tensor.shape.begin(), tensor.shape.end());
        header[tensor.name] = {{"dtype", tensor.dtype},
                               {"shape", std::move(shape)},
                               {"data_offsets", {at, at + tensor.bytes.size()}}};
        at += tensor.bytes.size();
    }
    return json::serialize(header);
}

std::string safetensors_file(std::string_view header, std::string_view data) {
    uint64_t length = header.size();
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    file += header;
    file += data;
    return file;
}

std::string safetensors_file(const std::vector<TestTensor>& tensors) {
    std::string data;
    for (const TestTensor& tensor : tensors)
        data += tensor.bytes;
    return safetensors_file(safetensors_header(tensors), data);
}

namespace {

void merge(json::object& into, const json::object& more) {
    for (const auto& [key, value] : more)
        into[key] = value;
}

} // namespace

TestCheckpoint::TestCheckpoint(std::string_view architecture, bool tied, std::string_view dtype) {
    config = {{"architectures", {boost::json::string(architecture.data(), architecture.size())}},
              {"model_type", "test"},
              {"hidden_size", 8},
              {"intermediate_size", 16},
              {"num_hidden_layers", 2},
              {"num_attention_heads", 2},
              {"num_key_value_heads", 1},
              {"head_dim", 4},
              {"vocab_size", 32},
              {"hidden_act", "silu"},
              {"rms_norm_eps", 1e-5},
              {"tie_word_embeddings", tied}};
    if (architecture == "Qwen3MoeForCausalLM")
        merge(config, {{"num_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 6},
                       {"mlp_only_layers", {0}}});
    if (architecture.starts_with("Deepseek"))
        merge(config, {{"n_routed_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 6},
                       {"n_shared_experts", 2},
                       {"first_k_dense_replace", 1},
                       {"q_lora_rank", 10},
                       {"kv_lora_rank", 12},
                       {"qk_nope_head_dim", 4},
                       {"qk_rope_head_dim", 2},
                       {"v_head_dim", 6}});
    fill(dtype);
}

void TestCheckpoint::fill(std::string_view dtype) {
    auto parsed = parse_config(json::serialize(config), "config.json");
    if (!parsed)
        throw std::runtime_error(parsed.error().message);
    tensors.clear();
    for (const ExpectedTensor& expected : expected_tensors(*parsed)) {
        std::string_view stored = expected.kind == ElementKind::kBlocks   ? "F8_E4M3"
                                  : expected.kind == ElementKind::kScales ? "F32"
                                                                          : dtype;
        if (!(parsed->tie_word_embeddings && expected.name == kHeadName))
            tensors.push_back(make_tensor(expected.name, std::string(stored), expected.shape));
    }
}

void TestCheckpoint::quantise_by_blocks(std::string_view dtype) {
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"fmt", "e4m3"},
                                     {"activation_scheme", "dynamic"},
                                     {"weight_block_size", {128, 128}}};
    fill(dtype);
}

TestTensor& TestCheckpoint::tensor(std::string_view name) {
    auto found = std::find_if(tensors.begin(), tensors.end(),
                              [&](const TestTensor& tensor) { return tensor.name == name; });
    if (found == tensors.end())
        throw std::runtime_error("no such test tensor: " + std::string(name));
    return *found;
}

void TestCheckpoint::erase(std::string_view name) {
    std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
}

void TestCheckpoint::write_config() const {
    write_bytes(folder.file("config.json"), json::serialize(config));
}

void TestCheckpoint::write_single() const {
    write_config();
    write_bytes(folder.file("model.safetensors"), safetensors_file(tensors));
}

std::map<std::string, std::string> TestCheckpoint::file_of(size_t shards) const {
    std::map<std::string, std::string> files;
    for (size_t index = 0; index < tensors.size(); ++index)
        files[tensors[index].name] = fmt::format("model-{:05}-of-{:05}.safetensors",
                                                 1 + index * shards / tensors.size(), shards);
    return files;
}

void TestCheckpoint::write_index(const std::map<std::string, std::string>& file_of) const {
    json::object map;
    for (const auto& [name, file] : file_of)
        map[name] = file;
    json::object index = {{"metadata", {{"total_size", 0}}}, {"weight_map", std::move(map)}};
    write_bytes(folder.file("model.safetensors.index.json"), json::serialize(index));
}

void TestCheckpoint::write_sharded(size_t shards) const {
    write_config();
    std::map<std::string, std::string> files = file_of(shards);
    std::map<std::string, std::vector<TestTensor>> parts;
    for (const TestTensor& tensor : tensors)
        parts[files[tensor.name]].push_back(tensor);
    for (const auto& [file, part] : parts)
        write_bytes(folder.file(file), safetensors_file(part));
    write_index(files);
}

} // namespace berth::testing
