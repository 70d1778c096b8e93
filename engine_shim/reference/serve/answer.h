// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/serve/completion_call.h"
#include "engine_shim/reference/serve/stop_matcher.h"
#include "engine_shim/reference/text/tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace berth::serve {

// One choice of an answer: text from the engine's events, cut at stop strings. Not thread-safe; the
// tokenizer outlives it.
class Choice {
  public:
    Choice(const text::Tokenizer& tokenizer, std::vector<std::string> stops)
        : detokenizer_(tokenizer, true), matcher_(std::move(stops)) {}

    // The text that this event makes certain. After finished() events are ignored: when a stop
    // string ended the choice, the engine still has to be told.
    std::string push(const engine::TokenEvent& event);

    bool finished() const { return !finish_reason_.empty(); }
    // The engine's request has not ended by itself: it must be cancelled.
    bool needs_cancel() const { return matcher_.stopped() && !engine_ended_; }
    // "stop", "length", "error", "cancelled"; empty while it goes on.
    const std::string& finish_reason() const { return finish_reason_; }
    const std::optional<Error>& error() const { return error_; }
    uint64_t tokens() const { return tokens_; }
    const std::string& text() const { return text_; }

  private:
    text::Detokenizer detokenizer_;
    StopMatcher matcher_;
    std::string text_;
    std::string finish_reason_;
    std::optional<Error> error_;
    uint64_t tokens_ = 0;
    bool engine_ended_ = false;
};

// The answer to a request, in OpenAI's shapes.
std::string answer_body(const CompletionCall& call, const std::vector<Choice>& choices);
// One SSE event ("data: ...\n\n") of a stream: text of a choice; its end; the counts; the last.
std::string role_event(const CompletionCall& call, size_t index);
std::string text_event(const CompletionCall& call, size_t index, const std::string& text);
std::string finish_event(const CompletionCall& call, size_t index, const std::string& reason);
std::string usage_event(const CompletionCall& call, const std::vector<Choice>& choices);
std::string error_event(const ApiError& error);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

} // namespace berth::serve
