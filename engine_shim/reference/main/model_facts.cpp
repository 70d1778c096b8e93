// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/model_facts.h"

#include "base/unique_fd.h"

#include <fmt/format.h>

#include <filesystem>

namespace berth::engine {

Status check_dtype(const std::string& wanted, at::ScalarType found) {
    const std::string name = found == at::kFloat ? "float32" : "bfloat16";
    if (wanted == "auto" || wanted == name)
        return {};
    return fail(ErrorCode::kMismatch,
                fmt::format("--dtype {} but the weight set is {}: weights are shared and never "
                            "converted here; set the Model's dtype, or use --dtype auto",
                            wanted, name),
                "DtypeMismatch");
}

Status read_eos(const std::string& folder, ModelConfig& config) {
    const std::string path = folder + "/generation_config.json";
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored))
        return {};
    BERTH_ASSIGN(const std::string text, read_file(path));
    BERTH_ASSIGN(std::vector<int32_t> tokens, parse_generation_eos(text, path));
    if (!tokens.empty())
        config.eos_tokens = std::move(tokens);
    return {};
}

std::string served_name(const Options& options, const Client& client, const WeightSet& weights) {
    if (!options.served_model_name.empty())
        return options.served_model_name;
    if (!client.welcome().model.empty())
        return client.welcome().model;
    std::filesystem::path folder(weights.model_path());
    return (folder.has_filename() ? folder : folder.parent_path()).filename();
}

} // namespace berth::engine
