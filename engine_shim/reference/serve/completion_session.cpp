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
    if (clock_) {
        clock_->end();
        if (const std::optional<double> later = clock_->later())
            metrics_.later_tokens.add(*later);
    }
    model_.engine.on_request_end();
}

boost::asio::awaitable<void> CompletionSession::run(http::Request request, CallKind kind) {
    kept_ = KeptCall(request.kept);
    resumed_ = kept_.resumes();
    ApiResult<CompletionCall> call = read_call(request.body, kind, model_);
    if (!call) {
        co_await refuse_with(call.error());
        co_return;
    }
    call_ = std::move(*call);
    for (size_t index = 0; index < call_.prompts.size(); ++index)
        choices_.emplace_back(model_.tokenizer, call_.stops);
    reported_.resize(choices_.size());
    in_engine_.resize(choices_.size());
    given_.resize(choices_.size());
    std::weak_ptr<EventQueue> events = events_;
    std::function<void()> on_closed = [events] {
        if (std::shared_ptr<EventQueue> queue = events.lock())
            queue->close();
    };
    request.peer->on_closed(std::move(on_closed));
    co_await answer();
}

boost::asio::awaitable<void> CompletionSession::answer() {
    if (resumed_ && stream_->started() && kept_.stage() == AnswerStage::kDone) {
        status_ = 200; // its last words are written
        co_return;
    }
    Status ready = resumed_ ? take_up() : Status();
    if (!resumed_)
        kept_.begin(call_);
    if (ready)
        ready = submit_all();
    if (!ready) {
        co_await refuse_with(to_api_error(ready.error()));
        co_return;
    }
    metrics_.prompt_tokens += call_.prompt_tokens();
    if (call_.is_stream)
        co_await stream_answer();
    else
        co_await whole_answer();
}

Status CompletionSession::take_up() {
    if (!kept_.restore(call_))
        return fail(ErrorCode::kCorrupt, "the journal's note of this request cannot be read");
    BERTH_ASSIGN(std::vector<engine::TokenEvent> events,
                 kept_.events(call_, model_.engine.vocab_size()));
    for (engine::TokenEvent& event : events) {
        const size_t index = choice_of(event.id);
        given_[index].push_back(event.token);
        if (unseen_.empty() && taken_ < kept_.covered()) {
            (void)take(event);
            reported_[index] = choices_[index].finished() ? 1 : 0;
            ++taken_;
        } else {
            unseen_.push_back(std::move(event));
        }
    }
    return {};
}

Status CompletionSession::submit_all() {
    clock_ = std::make_shared<AnswerClock>(model_.engine, begin_, choices_.size(), resumed_);
    kept_.hand_over();
    for (size_t index = 0; index < choices_.size(); ++index) {
        const bool is_ended =
            choices_[index].finished() ||
            std::any_of(unseen_.begin(), unseen_.end(), [&](const engine::TokenEvent& event) {
                return event.finished && choice_of(event.id) == index;
            });
        if (is_ended)
            continue;
        engine::GenerationRequest request = call_.request(index);
        request.generated = given_[index];
        kept_.mark(request);
        BERTH_TRY(
            model_.engine.submit(std::move(request), clock_->stamped(index, events_->callback())));
        in_engine_[index] = 1;
    }
    return {};
}

// Into the journal first: text that it makes certain may be written at once.
boost::asio::awaitable<std::optional<engine::TokenEvent>> CompletionSession::next_event() {
    std::optional<engine::TokenEvent> event;
    if (!unseen_.empty()) {
        event = std::move(unseen_.front());
        unseen_.pop_front();
        ++taken_;
        co_return event;
    }
    event = co_await events_->next();
    if (event && event->token >= 0) {
        kept_.add(choice_of(event->id), *event);
        ++taken_;
    }
    co_return event;
}

boost::asio::awaitable<Status> CompletionSession::write(std::string text, AnswerStage stage) {
    kept_.cover(taken_, stage);
    co_return co_await stream_->write(std::move(text));
}

// The index stands behind the last '-' of the id that we gave.
size_t CompletionSession::choice_of(const std::string& request_id) const {
    size_t index = 0;
    const size_t dash = request_id.rfind('-');
    std::from_chars(request_id.data() + dash + 1, request_id.data() + request_id.size(), index);
    return index;
}

boost::asio::awaitable<void> CompletionSession::end_with(ApiError error) {
    Status sent = co_await write(error_event(error), AnswerStage::kDone);
    if (sent)
        status_ = error.status;
}

boost::asio::awaitable<void> CompletionSession::refuse_with(ApiError error) {
    if (stream_->started()) { // by an engine before this one
        co_await end_with(error);
        co_return;
    }
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
    piece.index = choice_of(event.id);
    if (piece.index >= choices_.size())
        return {};
    if (clock_ && clock_->first() && !std::exchange(first_counted_, true))
        metrics_.first_token.add(*clock_->first());
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
        std::optional<engine::TokenEvent> event = co_await next_event();
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
    const AnswerStage stage = resumed_ ? kept_.stage() : AnswerStage::kNothing;
    Status sent;
    if (!stream_->started()) {
        http::Headers headers;
        headers.set("Cache-Control", "no-cache");
        kept_.cover(0, AnswerStage::kHeaders);
        sent = co_await stream_->start(200, "text/event-stream; charset=utf-8", headers);
    }
    std::string out;
    const bool has_roles = call_.kind == CallKind::kChat && stage != AnswerStage::kBody;
    for (size_t index = 0; has_roles && index < choices_.size(); ++index)
        out += role_event(call_, index);
    while (sent && !all_finished()) {
        // All events that are there go out in one write.
        if (unseen_.empty() && !events_->has_next() && !out.empty()) {
            std::string chunk;
            std::swap(chunk, out);
            sent = co_await write(std::move(chunk), AnswerStage::kBody);
            continue;
        }
        std::optional<engine::TokenEvent> event = co_await next_event();
        if (!event)
            co_return;
        Piece piece = take(*event);
        if (!piece.text.empty())
            out += text_event(call_, piece.index, piece.text);
        if (std::optional<ApiError> failed = failure()) {
            out += error_event(*failed);
            sent = co_await write(std::move(out), AnswerStage::kDone);
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
    sent = co_await write(std::move(out), AnswerStage::kDone);
    if (sent)
        status_ = 200;
}

} // namespace berth::serve
