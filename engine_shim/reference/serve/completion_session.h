// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/router.h"
#include "engine_shim/reference/serve/answer.h"
#include "engine_shim/reference/serve/completion_call.h"
#include "engine_shim/reference/serve/event_queue.h"
#include "engine_shim/reference/serve/metrics.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace berth::serve {

// Answers one completion request, as one body or as a stream. From construction to destruction it
// counts as a request to the gate (on_request_begin, on_request_end, once each). When it ends for
// whatever cause, what it still has in the engine is cancelled. Lives in its handler's coroutine,
// on the io thread; all it refers to outlives it.
class CompletionSession {
  public:
    CompletionSession(boost::asio::io_context& context, const Model& model, ServerMetrics& metrics,
                      http::StreamPtr stream, std::string route);
    CompletionSession(const CompletionSession&) = delete;
    CompletionSession& operator=(const CompletionSession&) = delete;
    ~CompletionSession();

    boost::asio::awaitable<void> run(http::Request request, CallKind kind);

  private:
    using Clock = std::chrono::steady_clock;

    Status submit_all();
    boost::asio::awaitable<void> stream_answer();
    boost::asio::awaitable<void> whole_answer();
    boost::asio::awaitable<void> refuse_with(ApiError error);
    // Feeds one event to its choice; the text it made certain, and of which choice.
    struct Piece {
        size_t index = 0;
        std::string text;
    };
    Piece take(const engine::TokenEvent& event);
    bool all_finished() const;
    std::optional<ApiError> failure() const;

    const Model& model_;
    ServerMetrics& metrics_;
    http::StreamPtr stream_;
    std::string route_;
    std::shared_ptr<EventQueue> events_;
    CompletionCall call_;
    std::vector<Choice> choices_;
    std::vector<char> in_engine_; // of each choice: submitted and not ended there
    std::vector<char> reported_;  // of each choice: the stream has its finish reason
    Clock::time_point begin_ = Clock::now();
    Clock::time_point first_token_{};
    int status_ = 0;
};

} // namespace berth::serve
