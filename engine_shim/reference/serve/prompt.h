// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "engine_shim/reference/serve/api_error.h"

#include <cstdint>
#include <vector>

namespace berth::serve {

struct Model;

// A completion's `prompt`: a string, token ids, or a list of either, as token ids.
ApiResult<std::vector<std::vector<int32_t>>> read_prompts(const json::object& body,
                                                          const Model& model);
// A chat's `messages`, written by the model's template: one prompt.
ApiResult<std::vector<std::vector<int32_t>>> read_chat_prompt(const json::object& body,
                                                              const Model& model);

} // namespace berth::serve
