// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/completion_session.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace berth::serve {
namespace {

double seconds(std::chrono::steady_clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
}

// 499, as web servers log it: the client left before its answer.
constexpr int kClientClosed = 499;

} // namespace

CompletionSession::CompletionSession(boost::asio::io_context& context, const Model& model,
                                     ServerMetrics& metrics, http::StreamPtr stream,
                                     std::string route)
    : model_(model), metrics_(metrics), stream_(std::move(stream)), route_(std::move(route)),
      events_(std::make_shared<EventQueue>(context)) {
    model_.engine.on_request_begin();
    ++metrics_.requests_now;
}

CompletionSession::~CompletionSession() {
    for (size_t index = 0; index < in_engine_.size(); ++index) {
        if (in_engine_[index] != 0)
            model_.engine.cancel(call_.request_id(index));
    }
    --metrics_.requests_now;
    ++metrics_.requests[{route_, status_ == 0 ? kClientClosed : status_}];
    if (status_ == 0)
        ++metrics_.disconnects;
    metrics_.whole.add(seconds(Clock::now() - begin_));
    uint64_t tokens = 0;
    for (const Choice& choice : choices_)
        tokens += choice.tokens();
    metrics_.completion_tokens += tokens;
    double later = 0;
    if (choices_.size() == 1 && tokens > 1) {
        later = seconds(Clock::now() - first_token_) / static_cast<double>(tokens - 1);
        metrics_.later_tokens.add(later);
    }
    if (first_token_ != Clock::time_point())
        model_.engine.on_latency(seconds(first_token_ - begin_), later);
    model_.engine.on_request_end();
}

boost::asio::awaitable<void> CompletionSession::run(http::Request request, CallKind kind) {
    ApiResult<CompletionCall> call = read_call(request.body, kind, model_);
    if (!call) {
        co_await refuse_with(call.error());
        co_return;
    }
    call_ = std::move(*call);
    for (size_t index = 0; index < call_.prompts.size(); ++index)
        choices_.emplace_back(model_.tokenizer, call_.stops);
    reported_.resize(choices_.size());
    std::weak_ptr<EventQueue> events = events_;
    std::function<void()> on_closed = [events] {
        if (std::shared_ptr<EventQueue> queue = events.lock())
            queue->close();
    };
    request.peer->on_closed(std::move(on_closed));
    Status submitted = submit_all();
    if (!submitted) {
        co_await refuse_with(to_api_error(submitted.error()));
        co_return;
    }
    metrics_.prompt_tokens += call_.prompt_tokens();
    if (call_.is_stream)
        co_await stream_answer();
    else
        co_await whole_answer();
}

Status CompletionSession::submit_all() {
    for (size_t index = 0; index < call_.prompts.size(); ++index) {
        BERTH_TRY(model_.engine.submit(call_.request(index), events_->callback()));
        in_engine_.push_back(1);
    }
    return {};
}

boost::asio::awaitable<void> CompletionSession::refuse_with(ApiError error) {
    http::Response response;
    response.status = error.status;
    response.body = serialize(error);
    if (error.status == 429 || error.status == 503)
        response.headers.set("Retry-After", "1");
    Status sent = co_await stream_->respond(std::move(response));
    if (sent)
        status_ = error.status;
}

CompletionSession::Piece CompletionSession::take(const engine::TokenEvent& event) {
    Piece piece;
    // The index stands behind the last '-' of the id that we gave.
    size_t dash = event.id.rfind('-');
    std::from_chars(event.id.data() + dash + 1, event.id.data() + event.id.size(), piece.index);
    if (piece.index >= choices_.size())
        return {};
    if (event.token >= 0 && first_token_ == Clock::time_point()) {
        first_token_ = Clock::now();
        metrics_.first_token.add(seconds(first_token_ - begin_));
    }
    Choice& choice = choices_[piece.index];
    piece.text = choice.push(event);
    if (event.finished)
        in_engine_[piece.index] = 0;
    if (choice.needs_cancel() && in_engine_[piece.index] != 0) {
        model_.engine.cancel(event.id);
        in_engine_[piece.index] = 0;
    }
    return piece;
}

bool CompletionSession::all_finished() const {
    return std::all_of(choices_.begin(), choices_.end(),
                       [](const Choice& choice) { return choice.finished(); });
}

// What keeps the answer from being whole: the engine failed, or stops.
std::optional<ApiError> CompletionSession::failure() const {
    for (const Choice& choice : choices_) {
        if (choice.finish_reason() == "error")
            return to_api_error(
                choice.error().value_or(Error{ErrorCode::kInternal, "the engine failed", "", 0}));
        if (choice.finish_reason() == "cancelled")
            return to_api_error(Error{ErrorCode::kUnavailable,
                                      "the engine stopped before the answer was whole; try again",
                                      "", 0});
    }
    return std::nullopt;
}

boost::asio::awaitable<void> CompletionSession::whole_answer() {
    while (!all_finished()) {
        std::optional<engine::TokenEvent> event = co_await events_->next();
        if (!event)
            co_return;
        take(*event);
        if (std::optional<ApiError> failed = failure()) {
            co_await refuse_with(*failed);
            co_return;
        }
    }
    http::Response response;
    response.body = answer_body(call_, choices_);
    Status sent = co_await stream_->respond(std::move(response));
    if (sent)
        status_ = 200;
}

boost::asio::awaitable<void> CompletionSession::stream_answer() {
    http::Headers headers;
    headers.set("Cache-Control", "no-cache");
    Status sent = co_await stream_->start(200, "text/event-stream; charset=utf-8", headers);
    std::string out;
    for (size_t index = 0; call_.kind == CallKind::kChat && index < choices_.size(); ++index)
        out += role_event(call_, index);
    while (sent && !all_finished()) {
        // All events that are there go out in one write.
        if (!events_->has_next() && !out.empty()) {
            std::string chunk;
            std::swap(chunk, out);
            sent = co_await stream_->write(std::move(chunk));
            continue;
        }
        std::optional<engine::TokenEvent> event = co_await events_->next();
        if (!event)
            co_return;
        Piece piece = take(*event);
        if (!piece.text.empty())
            out += text_event(call_, piece.index, piece.text);
        if (std::optional<ApiError> failed = failure()) {
            out += error_event(*failed);
            sent = co_await stream_->write(std::move(out));
            if (sent)
                status_ = failed->status;
            co_return;
        }
        const Choice& choice = choices_[piece.index];
        if (choice.finished() && !std::exchange(reported_[piece.index], char{1}))
            out += finish_event(call_, piece.index, choice.finish_reason());
    }
    if (!sent)
        co_return;
    if (call_.includes_usage)
        out += usage_event(call_, choices_);
    out += kDoneEvent;
    sent = co_await stream_->write(std::move(out));
    if (sent)
        status_ = 200;
}

} // namespace berth::serve
