// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/router.h"
#include "engine_shim/reference/serve/answer.h"
#include "engine_shim/reference/serve/answer_clock.h"
#include "engine_shim/reference/serve/completion_call.h"
#include "engine_shim/reference/serve/event_queue.h"
#include "engine_shim/reference/serve/kept_call.h"
#include "engine_shim/reference/serve/metrics.h"

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace berth::serve {

// Answers one completion request, as one body or as a stream. From construction to destruction it
// counts as a request to the gate (on_request_begin, on_request_end, once each). When it ends for
// whatever cause, what it still has in the engine is cancelled. Where its connection is kept it
// leaves what a successor needs, and goes on with what another engine has left. Lives in its
// handler's coroutine, on the io thread; all it refers to outlives it.
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

    boost::asio::awaitable<void> answer();
    // Of a request that another engine began: what that one has written is done again unseen, the
    // rest waits in unseen_.
    Status take_up();
    Status submit_all();
    boost::asio::awaitable<void> stream_answer();
    boost::asio::awaitable<void> whole_answer();
    boost::asio::awaitable<void> refuse_with(ApiError error);
    // In a stream that has begun: as its last event.
    boost::asio::awaitable<void> end_with(ApiError error);
    boost::asio::awaitable<std::optional<engine::TokenEvent>> next_event();
    boost::asio::awaitable<Status> write(std::string text, AnswerStage stage);
    // Feeds one event to its choice; the text it made certain, and of which choice.
    struct Piece {
        size_t index = 0;
        std::string text;
    };
    Piece take(const engine::TokenEvent& event);
    size_t choice_of(const std::string& request_id) const;
    bool all_finished() const;
    std::optional<ApiError> failure() const;

    const Model& model_;
    ServerMetrics& metrics_;
    http::StreamPtr stream_;
    std::string route_;
    std::shared_ptr<EventQueue> events_;
    CompletionCall call_;
    KeptCall kept_{nullptr};
    bool resumed_ = false;
    std::vector<std::vector<int32_t>> given_; // of each choice: by another engine
    std::deque<engine::TokenEvent> unseen_;   // of these: not yet written
    size_t taken_ = 0;                        // events that came, and are in the journal
    std::vector<Choice> choices_;
    std::vector<char> in_engine_; // of each choice: submitted and not ended there
    std::vector<char> reported_;  // of each choice: the stream has its finish reason
    Clock::time_point begin_ = Clock::now();
    std::shared_ptr<AnswerClock> clock_; // null: nothing was asked of the engine
    bool first_counted_ = false;         // its time to the first token
    int status_ = 0;
};

} // namespace berth::serve
