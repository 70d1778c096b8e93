// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <tl/expected.hpp>

#include <string>
#include <utility>

namespace berth::serve {

// A refusal in the shape that OpenAI's clients know:
// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}.
struct ApiError {
    int status = 400;
    std::string message;
    std::string type = "invalid_request_error";
    std::string param; // empty: null
    std::string code;  // empty: null
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> refuse(std::string param, std::string message,
                                       std::string code = {}) {
    return tl::unexpected<ApiError>(ApiError{400, std::move(message), "invalid_request_error",
                                             std::move(param), std::move(code)});
}

// The refusal that an error of the engine or of the tokenizer stands for.
ApiError to_api_error(const Error& error);
// Its body.
std::string serialize(const ApiError& error);

} // namespace berth::serve
