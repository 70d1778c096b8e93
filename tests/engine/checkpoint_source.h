// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/runner.h"

#include <memory>
#include <string>

// A checkpoint read straight from its files, without loader or daemon, so that what is tested here
// is the model's mathematics alone.
namespace berth::engine {

// Tensors are views of the files, mapped for as long as the process lives.
Result<WeightSource> open_checkpoint(const std::string& folder);
Result<ModelConfig> read_config(const std::string& folder);

// A runner over KV memory of its own.
struct TestModel {
    std::unique_ptr<std::byte[]> memory;
    uint32_t blocks = 0;
    std::unique_ptr<ModelRunner> runner;
};
Result<TestModel> open_test_model(const std::string& folder, uint32_t blocks,
                                  RunnerOptions options);
TestModel make_test_model(const ModelConfig& config, DecoderWeights weights, uint32_t blocks,
                          RunnerOptions options);
// A small decoder with random weights from a fixed seed.
ModelConfig tiny_config();
DecoderWeights random_weights(const ModelConfig& config, at::ScalarType dtype);

inline constexpr uint32_t kTestBlockTokens = 16;

} // namespace berth::engine
