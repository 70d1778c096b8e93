// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/answer.h"

namespace berth::serve {
namespace {

bool is_chat(const CompletionCall& call) {
    return call.kind == CallKind::kChat;
}

json::object head(const CompletionCall& call, bool is_chunk) {
    json::object body;
    body["id"] = call.id;
    body["object"] = !is_chat(call) ? "text_completion"
                                    : (is_chunk ? "chat.completion.chunk" : "chat.completion");
    body["created"] = call.created;
    body["model"] = call.model;
    return body;
}

json::object usage(const CompletionCall& call, const std::vector<Choice>& choices) {
    uint64_t generated = 0;
    for (const Choice& choice : choices)
        generated += choice.tokens();
    json::object counts;
    counts["prompt_tokens"] = call.prompt_tokens();
    counts["completion_tokens"] = generated;
    counts["total_tokens"] = call.prompt_tokens() + generated;
    return counts;
}

std::string event(const json::object& body) {
    return "data: " + json::serialize(body) + "\n\n";
}

// A chunk with one choice; `delta` is a chat's, `text` a completion's.
std::string chunk(const CompletionCall& call, size_t index, json::object delta,
                  const std::string& text, const std::string& reason) {
    json::object choice;
    choice["index"] = index;
    if (is_chat(call))
        choice["delta"] = std::move(delta);
    else
        choice["text"] = text;
    choice["logprobs"] = nullptr;
    choice["finish_reason"] =
        reason.empty() ? json::value() : json::value(boost::json::string(reason));
    json::object body = head(call, true);
    body["choices"] = json::array{std::move(choice)};
    if (call.includes_usage)
        body["usage"] = nullptr;
    return event(body);
}

} // namespace

std::string Choice::push(const engine::TokenEvent& event) {
    if (finished()) {
        engine_ended_ = engine_ended_ || event.finished;
        return {};
    }
    bool is_end_token = event.finish_reason == engine::FinishReason::kStop;
    std::string certain;
    if (event.token >= 0) {
        ++tokens_;
        if (!is_end_token)
            certain = matcher_.push(detokenizer_.push(event.token));
    }
    engine_ended_ = event.finished;
    if (matcher_.stopped()) {
        finish_reason_ = "stop";
    } else if (event.finished) {
        certain += matcher_.push(detokenizer_.finish());
        certain += matcher_.finish();
        finish_reason_ = engine::to_string(event.finish_reason);
        error_ = event.error;
    }
    text_ += certain;
    return certain;
}

std::string answer_body(const CompletionCall& call, const std::vector<Choice>& choices) {
    json::array list;
    for (const Choice& choice : choices) {
        json::object entry;
        entry["index"] = list.size();
        if (is_chat(call)) {
            json::object message;
            message["role"] = "assistant";
            message["content"] = choice.text();
            message["refusal"] = nullptr;
            entry["message"] = std::move(message);
        } else {
            entry["text"] = choice.text();
        }
        entry["logprobs"] = nullptr;
        entry["finish_reason"] = choice.finish_reason();
        list.push_back(std::move(entry));
    }
    json::object body = head(call, false);
    body["choices"] = std::move(list);
    body["usage"] = usage(call, choices);
    return json::serialize(body);
}

std::string role_event(const CompletionCall& call, size_t index) {
    json::object delta;
    delta["role"] = "assistant";
    delta["content"] = "";
    return chunk(call, index, std::move(delta), {}, {});
}

std::string text_event(const CompletionCall& call, size_t index, const std::string& text) {
    json::object delta;
    delta["content"] = text;
    return chunk(call, index, std::move(delta), text, {});
}

std::string finish_event(const CompletionCall& call, size_t index, const std::string& reason) {
    return chunk(call, index, {}, {}, reason);
}

std::string usage_event(const CompletionCall& call, const std::vector<Choice>& choices) {
    json::object body = head(call, true);
    body["choices"] = json::array();
    body["usage"] = usage(call, choices);
    return event(body);
}

std::string error_event(const ApiError& error) {
    return "data: " + serialize(error) + "\n\n";
}

} // namespace berth::serve
