// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/model_facts.h"

#include "base/json.h"
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

Result<std::vector<int32_t>> canary_prompt(const std::string& input, uint32_t vocab,
                                           uint32_t most) {
    BERTH_ASSIGN(const json::value parsed, json::parse(input, "the canary's input"));
    std::vector<int32_t> prompt;
    if (const json::array* ids = parsed.if_array())
        for (const json::value& id : *ids) {
            boost::json::error_code error;
            const auto token = id.to_number<int32_t>(error);
            if (error || token < 0 || static_cast<uint32_t>(token) >= vocab)
                return fail(ErrorCode::kCorrupt,
                            fmt::format("the canary's input has {} where a token id below {} is "
                                        "expected",
                                        json::serialize(id), vocab));
            prompt.push_back(token);
        }
    if (prompt.empty() || prompt.size() > most)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("the canary's input is no array of 1 to {} token ids", most));
    return prompt;
}

} // namespace berth::engine
