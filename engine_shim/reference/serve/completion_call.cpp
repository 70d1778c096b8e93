// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/completion_call.h"

#include "base/hash.h"
#include "engine_shim/reference/serve/prompt.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <optional>

namespace berth::serve {
namespace {

// A parameter's value; nullptr when it is absent or null, which mean the same to OpenAI.
const json::value* parameter(const json::object& body, std::string_view name) {
    const json::value* found = body.if_contains(boost::json::string_view(name.data(), name.size()));
    return found == nullptr || found->is_null() ? nullptr : found;
}

tl::unexpected<ApiError> wrong_type(std::string_view name, std::string_view expected,
                                    const json::value& found) {
    return refuse(std::string(name), fmt::format("'{}': expected {}, found {}", name, expected,
                                                 json::kind_name(found)));
}

ApiResult<int64_t> integer(const json::object& body, std::string_view name, int64_t fallback,
                           int64_t least, int64_t most) {
    const json::value* found = parameter(body, name);
    if (found == nullptr)
        return fallback;
    boost::json::error_code error;
    auto number = found->to_number<int64_t>(error);
    if (error || !found->is_number())
        return wrong_type(name, "an integer", *found);
    if (number < least || number > most)
        return refuse(std::string(name),
                      fmt::format("'{}': expected {} to {}, found {}", name, least, most, number));
    return number;
}

ApiResult<double> number(const json::object& body, std::string_view name, double fallback,
                         double least, double most) {
    const json::value* found = parameter(body, name);
    if (found == nullptr)
        return fallback;
    if (!found->is_number())
        return wrong_type(name, "a number", *found);
    auto value = found->to_number<double>();
    if (!(value >= least && value <= most))
        return refuse(std::string(name),
                      fmt::format("'{}': expected {} to {}, found {}", name, least, most, value));
    return value;
}

ApiResult<bool> boolean(const json::object& body, std::string_view name) {
    const json::value* found = parameter(body, name);
    if (found == nullptr)
        return false;
    if (!found->is_bool())
        return wrong_type(name, "true or false", *found);
    return found->get_bool();
}

// Whether a parameter asks for nothing, though it is given: false, 0, "", [], {}.
bool asks_nothing(const json::value& value) {
    return (value.is_bool() && !value.get_bool()) ||
           (value.is_number() && value.to_number<double>() == 0) ||
           (value.is_array() && value.get_array().empty()) ||
           (value.is_object() && value.get_object().empty()) ||
           (value.is_string() && value.get_string().empty());
}

// What would change the answer and is not done here.
ApiResult<void> check_unsupported(const json::object& body) {
    for (std::string_view name :
         {"tools", "functions", "echo", "suffix", "logit_bias", "presence_penalty",
          "frequency_penalty", "top_logprobs", "audio", "web_search_options", "prediction"}) {
        const json::value* found = parameter(body, name);
        if (found != nullptr && !asks_nothing(*found))
            return refuse(std::string(name), fmt::format("'{}' is not supported", name),
                          "unsupported_parameter");
    }
    // For completions logprobs is a count, and 0 asks for the chosen token's.
    const json::value* logprobs = parameter(body, "logprobs");
    if (logprobs != nullptr && !(logprobs->is_bool() && !logprobs->get_bool()))
        return refuse("logprobs", "'logprobs' is not supported", "unsupported_parameter");
    for (std::string_view name : {"n", "best_of"}) {
        ApiResult<int64_t> count = integer(body, name, 1, 1, 128);
        if (!count)
            return tl::unexpected<ApiError>(count.error());
        if (*count != 1)
            return refuse(std::string(name),
                          fmt::format("'{}': only 1 is supported, found {}", name, *count),
                          "unsupported_value");
    }
    if (const json::value* format = parameter(body, "response_format")) {
        const json::value* type =
            format->is_object() ? format->get_object().if_contains("type") : nullptr;
        if (type == nullptr || *type != json::value("text"))
            return refuse("response_format",
                          R"('response_format': only {"type": "text"} is supported)",
                          "unsupported_value");
    }
    return {};
}

ApiResult<std::vector<std::string>> read_stops(const json::object& body) {
    std::vector<std::string> stops;
    const json::value* found = parameter(body, "stop");
    if (found == nullptr)
        return stops;
    json::array one;
    if (found->is_string())
        one.push_back(*found);
    else if (!found->is_array())
        return wrong_type("stop", "a string or a list of strings", *found);
    for (const json::value& stop : found->is_array() ? found->get_array() : one) {
        if (!stop.is_string() || stop.get_string().empty())
            return refuse("stop", "'stop': expected strings that are not empty, found " +
                                      json::serialize(stop));
        stops.emplace_back(stop.get_string().data(), stop.get_string().size());
    }
    if (stops.size() > kStopsMax)
        return refuse("stop", fmt::format("'stop': expected at most {} strings, found {}",
                                          kStopsMax, stops.size()));
    return stops;
}

ApiResult<void> read_model(const json::object& body, const Model& model, CompletionCall& call) {
    const json::value* found = parameter(body, "model");
    if (found == nullptr || !found->is_string())
        return refuse("model", fmt::format("you must provide a model parameter; '{}' is served",
                                           model.engine.model_name()));
    call.model.assign(found->get_string().data(), found->get_string().size());
    if (call.model != model.engine.model_name())
        return tl::unexpected<ApiError>(
            ApiError{404,
                     fmt::format("the model '{}' does not exist; '{}' is served", call.model,
                                 model.engine.model_name()),
                     "invalid_request_error", "model", "model_not_found"});
    return {};
}

#define BERTH_API_ASSIGN(target, expression)                                                       \
    do {                                                                                           \
        auto berth_api_result = (expression);                                                      \
        if (!berth_api_result)                                                                     \
            return tl::unexpected<ApiError>(std::move(berth_api_result).error());                  \
        target = static_cast<decltype(target)>(*std::move(berth_api_result));                      \
    } while (false)
#define BERTH_API_TRY(expression)                                                                  \
    do {                                                                                           \
        auto berth_api_result = (expression);                                                      \
        if (!berth_api_result)                                                                     \
            return tl::unexpected<ApiError>(std::move(berth_api_result).error());                  \
    } while (false)

ApiResult<void> read_sampling(const json::object& body, CompletionCall& call) {
    engine::GenerationRequest& settings = call.settings;
    BERTH_API_ASSIGN(settings.temperature, number(body, "temperature", 1, 0, 2));
    BERTH_API_ASSIGN(settings.top_p, number(body, "top_p", 1, 0, 1));
    if (settings.top_p == 0) // only the likeliest token is left
        settings.temperature = 0;
    if (settings.top_p == 0)
        settings.top_p = 1;
    // -1 means all in some servers, 0 in others.
    int64_t top_k = 0;
    BERTH_API_ASSIGN(top_k, integer(body, "top_k", 0, -1, std::numeric_limits<int32_t>::max()));
    settings.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
    BERTH_API_ASSIGN(settings.ignore_eos, boolean(body, "ignore_eos"));
    if (parameter(body, "seed") != nullptr) {
        BERTH_API_ASSIGN(settings.seed,
                         integer(body, "seed", 0, std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::max()));
    } else {
        settings.seed = std::stoull(random_hex(8), nullptr, 16);
    }
    return {};
}

// How many tokens may be generated: what was asked for, within what the context leaves.
ApiResult<void> read_length(const json::object& body, const Model& model, CompletionCall& call) {
    int64_t context = model.engine.max_context();
    std::string_view name = "max_tokens";
    if (call.kind == CallKind::kChat && parameter(body, "max_completion_tokens") != nullptr)
        name = "max_completion_tokens";
    size_t longest = 0;
    for (const std::vector<int32_t>& prompt : call.prompts)
        longest = std::max(longest, prompt.size());
    int64_t left = context - static_cast<int64_t>(longest);
    int64_t fallback = call.kind == CallKind::kChat ? left : 16;
    int64_t asked = 0;
    BERTH_API_ASSIGN(asked, integer(body, name, fallback, std::min<int64_t>(fallback, 1),
                                    std::numeric_limits<int32_t>::max()));
    if (left < 1 || asked > left)
        return refuse(call.kind == CallKind::kChat ? "messages" : "prompt",
                      fmt::format("this model's context is {} tokens; the request needs {} ({} of "
                                  "the prompt, {} to generate): shorten the prompt or '{}'",
                                  context,
                                  static_cast<int64_t>(longest) + std::max<int64_t>(asked, 1),
                                  longest, std::max<int64_t>(asked, 1), name),
                      "context_length_exceeded");
    call.settings.max_new_tokens = static_cast<uint32_t>(asked);
    return {};
}

ApiResult<void> read_streaming(const json::object& body, CompletionCall& call) {
    BERTH_API_ASSIGN(call.is_stream, boolean(body, "stream"));
    const json::value* options = parameter(body, "stream_options");
    if (options == nullptr)
        return {};
    if (!options->is_object())
        return wrong_type("stream_options", "an object", *options);
    if (!call.is_stream)
        return refuse("stream_options", "'stream_options' is allowed only with 'stream': true");
    BERTH_API_ASSIGN(call.includes_usage, boolean(options->get_object(), "include_usage"));
    return {};
}

} // namespace

size_t CompletionCall::prompt_tokens() const {
    size_t tokens = 0;
    for (const std::vector<int32_t>& prompt : prompts)
        tokens += prompt.size();
    return tokens;
}

engine::GenerationRequest CompletionCall::request(size_t index) const {
    engine::GenerationRequest request = settings;
    request.id = request_id(index);
    request.prompt = prompts[index];
    return request;
}

ApiResult<CompletionCall> read_call(std::string_view body, CallKind kind, const Model& model) {
    Result<json::value> parsed = json::parse(body, "the request's body");
    if (!parsed)
        return refuse({}, parsed.error().message);
    return read_call(*parsed, kind, model);
}

ApiResult<CompletionCall> read_call(const json::value& body, CallKind kind, const Model& model) {
    const json::object* object = body.if_object();
    if (object == nullptr)
        return refuse({}, fmt::format("the request's body: expected an object, found {}",
                                      json::kind_name(body)));
    CompletionCall call;
    call.kind = kind;
    call.id = (kind == CallKind::kChat ? "chatcmpl-" : "cmpl-") + random_hex(12);
    call.created = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
    BERTH_API_TRY(read_model(*object, model, call));
    BERTH_API_TRY(check_unsupported(*object));
    BERTH_API_TRY(read_streaming(*object, call));
    BERTH_API_TRY(read_sampling(*object, call));
    BERTH_API_ASSIGN(call.stops, read_stops(*object));
    if (kind == CallKind::kChat)
        BERTH_API_ASSIGN(call.prompts, read_chat_prompt(*object, model));
    else
        BERTH_API_ASSIGN(call.prompts, read_prompts(*object, model));
    BERTH_API_TRY(read_length(*object, model, call));
    return call;
}

} // namespace berth::serve
