// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/client.h"
#include "engine_shim/reference/main/options.h"
#include "engine_shim/reference/model/model_config.h"

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

// What an engine knows of its model besides config.json.
namespace berth::engine {

// Mismatch when the options name another type than the weights have.
Status check_dtype(const std::string& wanted, at::ScalarType found);
// End tokens as generation would use them: generation_config.json first, if the folder has one.
Status read_eos(const std::string& folder, ModelConfig& config);
// The name that clients ask for.
std::string served_name(const Options& options, const Client& client, const WeightSet& weights);

// The input of a set's canary: a JSON array of 1 to `most` token ids. Corrupt for anything else.
Result<std::vector<int32_t>> canary_prompt(const std::string& input, uint32_t vocab, uint32_t most);

} // namespace berth::engine
