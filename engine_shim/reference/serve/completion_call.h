// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "engine_shim/reference/serve/api_error.h"
#include "engine_shim/reference/serve/engine_api.h"
#include "engine_shim/reference/text/chat_template.h"
#include "engine_shim/reference/text/tokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth::serve {

// What requests are read against. The engine and the tokenizer outlive all that refers to them.
struct Model {
    engine::EngineApi& engine;
    const text::Tokenizer& tokenizer;
    Result<text::ChatTemplate> chat; // an error: chat is refused with it
};

enum class CallKind { kCompletion, kChat };

// One request of /v1/completions or /v1/chat/completions, read and checked.
struct CompletionCall {
    CallKind kind = CallKind::kCompletion;
    std::string id; // "cmpl-..." or "chatcmpl-..."
    std::string model;
    int64_t created = 0; // seconds since 1970
    std::vector<std::vector<int32_t>> prompts;
    engine::GenerationRequest settings; // without id and prompt
    std::vector<std::string> stops;
    bool is_stream = false;
    bool includes_usage = false; // a last chunk with the token counts

    size_t prompt_tokens() const;
    // The engine's request for one of the prompts.
    engine::GenerationRequest request(size_t index) const;
    std::string request_id(size_t index) const { return id + "-" + std::to_string(index); }
};

inline constexpr size_t kPromptsMax = 64; // in one call
inline constexpr size_t kStopsMax = 16;

// Reads and checks a request's body. Parameters that would change the answer and are not supported
// are refused by name; unknown ones are ignored, as OpenAI's own servers do.
ApiResult<CompletionCall> read_call(std::string_view body, CallKind kind, const Model& model);
ApiResult<CompletionCall> read_call(const json::value& body, CallKind kind, const Model& model);

} // namespace berth::serve
