// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/checkpoint_source.h"

#include "base/json.h"
#include "base/unique_fd.h"
#include "engine_shim/reference/model/thread_wait.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <map>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace berth::engine {

namespace {

// Before main, for every program that links this: tests run beside each other on few cores.
[[gnu::constructor]] void sleep_while_waiting(int, char** argv, char**) {
    restart_with_sleeping_threads(argv);
}

using Tensors = std::map<std::string, at::Tensor>;

Status add_file(const std::string& path, Tensors& tensors) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info = {};
    if (!fd || ::fstat(fd.get(), &info) != 0)
        return fail_errno(path);
    const auto bytes = static_cast<size_t>(info.st_size);
    // Private and writable, since at::from_blob wants a plain pointer; nothing writes.
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd.get(), 0);
    if (mapped == MAP_FAILED)
        return fail_errno(path);
    auto* data = static_cast<char*>(mapped);
    uint64_t header = 0;
    std::memcpy(&header, data, sizeof header);
    BERTH_ASSIGN(const json::value document, json::parse({data + 8, header}, path));
    for (const auto& item : document.as_object()) {
        if (item.key() == "__metadata__")
            continue;
        const json::object& entry = item.value().as_object();
        std::vector<int64_t> shape;
        for (const json::value& size : entry.at("shape").as_array())
            shape.push_back(size.to_number<int64_t>());
        const auto& dtype = entry.at("dtype").as_string();
        const auto begin = entry.at("data_offsets").as_array().at(0).to_number<uint64_t>();
        tensors[std::string(item.key())] =
            at::from_blob(data + 8 + header + begin, shape,
                          at::TensorOptions().dtype(dtype == "BF16"      ? at::kBFloat16
                                                    : dtype == "F8_E4M3" ? at::kFloat8_e4m3fn
                                                                         : at::kFloat));
    }
    return {};
}

} // namespace

Result<WeightSource> open_checkpoint(const std::string& folder) {
    auto tensors = std::make_shared<Tensors>();
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() == ".safetensors")
            BERTH_TRY(add_file(entry.path(), *tensors));
    }
    return WeightSource([tensors](const std::string& name) -> Result<at::Tensor> {
        const auto found = tensors->find(name);
        if (found == tensors->end())
            return fail(ErrorCode::kNotFound, fmt::format("no tensor '{}'", name));
        return found->second;
    });
}

Result<ModelConfig> read_config(const std::string& folder) {
    BERTH_ASSIGN(const std::string text, read_file(folder + "/config.json"));
    return parse_model_config(text, folder + "/config.json");
}

TestModel make_test_model(const ModelConfig& config, DecoderWeights weights, uint32_t blocks,
                          RunnerOptions options) {
    const KvLayout layout = kv_layout(config, weights.embedding.scalar_type(), kTestBlockTokens);
    TestModel model;
    model.blocks = blocks;
    const uint64_t bytes = blocks * layout.block_bytes();
    model.memory = std::make_unique<std::byte[]>(bytes);
    // What lies in unused memory must not matter: all NaN.
    std::memset(model.memory.get(), 0xff, bytes);
    KvCache cache(layout, model.memory.get(), bytes, weights.embedding.scalar_type(), at::kCPU);
    model.runner =
        std::make_unique<ModelRunner>(config, std::move(weights), std::move(cache), options);
    return model;
}

Result<TestModel> open_test_model(const std::string& folder, uint32_t blocks,
                                  RunnerOptions options) {
    BERTH_ASSIGN(const ModelConfig config, read_config(folder));
    BERTH_ASSIGN(const WeightSource source, open_checkpoint(folder));
    BERTH_ASSIGN(DecoderWeights weights, resolve_weights(config, source));
    return make_test_model(config, std::move(weights), blocks, options);
}

ModelConfig tiny_config() {
    ModelConfig config;
    config.architecture = Architecture::kQwen3;
    config.hidden = 96;
    config.intermediate = 200;
    config.layers = 3;
    config.heads = 6;
    config.kv_heads = 2;
    config.head_dim = 32;
    config.vocab = 331;
    config.max_positions = 512;
    config.tied_head = true;
    config.qk_norm = true;
    return config;
}

DecoderWeights random_weights(const ModelConfig& config, at::ScalarType dtype) {
    at::manual_seed(20);
    const auto source = [&](const std::string& name, at::IntArrayRef shape) {
        const bool norm = name.find("norm") != std::string::npos;
        const at::Tensor noise = at::randn(shape) * (norm ? 0.1 : 0.08);
        return (norm ? noise + 1.0 : noise).to(dtype);
    };
    const int64_t hidden = config.hidden, inner = config.intermediate;
    const int64_t query = int64_t{config.heads} * config.head_dim;
    const int64_t key = int64_t{config.kv_heads} * config.head_dim;
    DecoderWeights weights;
    weights.embedding = source("embedding", {config.vocab, hidden}) * 4;
    weights.head = weights.embedding;
    weights.final_norm = source("norm", {hidden});
    for (uint32_t layer = 0; layer < config.layers; ++layer) {
        LayerWeights w;
        w.input_norm = source("norm", {hidden});
        w.post_norm = source("norm", {hidden});
        w.q.weight = source("q", {query, hidden});
        w.k.weight = source("k", {key, hidden});
        w.v.weight = source("v", {key, hidden});
        w.o.weight = source("o", {hidden, query});
        w.q_norm = source("norm", {config.head_dim});
        w.k_norm = source("norm", {config.head_dim});
        w.gate.weight = source("gate", {inner, hidden});
        w.up.weight = source("up", {inner, hidden});
        w.down.weight = source("down", {hidden, inner});
        weights.layers.push_back(w);
    }
    return weights;
}

} // namespace berth::engine
