// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/api_error.h"

#include "base/json.h"

namespace berth::serve {

ApiError to_api_error(const Error& error) {
    ApiError api;
    api.message = error.message;
    api.code = error.reason;
    switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
        return api;
    case ErrorCode::kResourceExhausted:
        api.status = 429;
        api.type = "rate_limit_error";
        return api;
    case ErrorCode::kUnavailable:
        api.status = 503;
        api.type = "server_error";
        return api;
    default:
        api.status = 500;
        api.type = "server_error";
        return api;
    }
}

std::string serialize(const ApiError& error) {
    auto or_null = [](const std::string& text) {
        return text.empty() ? json::value() : json::value(boost::json::string(text));
    };
    json::object inner;
    inner["message"] = error.message;
    inner["type"] = error.type;
    inner["param"] = or_null(error.param);
    inner["code"] = or_null(error.code);
    json::object body;
    body["error"] = std::move(inner);
    return json::serialize(body);
}

} // namespace berth::serve
