// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/open_loop.h"

#include "base/http/task_group.h"
#include "scheduler/cli/bench/colocate/stop_signals.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <chrono>

namespace berth::cli::bench {

namespace asio = boost::asio;

namespace {

using Clock = HttpWire::Clock;
constexpr std::chrono::milliseconds kLookEvery{100};
constexpr std::chrono::milliseconds kStopEvery{20};

Clock::duration duration_of(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class Loop {
  public:
    explicit Loop(LoopPlan plan) : plan_(std::move(plan)), tasks_(io_) {
        outcome_.answers.resize(plan_.requests.size());
    }

    LoopOutcome run() {
        // Whatever is to be set up is, before the first is due.
        begin_ = Clock::now() + kLookEvery;
        outcome_.begun_monotonic_s =
            std::chrono::duration<double>(begin_.time_since_epoch()).count();
        if (plan_.one_by_one) {
            tasks_.start("requests one by one", ask_in_turn());
        } else {
            for (size_t n = 0; n < plan_.requests.size(); ++n)
                tasks_.start("a request", ask_when_due(n));
        }
        if (plan_.batch)
            tasks_.start("counters of batch", watch_batch());
        tasks_.start("the end", end_when_over());
        io_.run();
        return std::move(outcome_);
    }

  private:
    double seconds(Clock::time_point at) const {
        return std::chrono::duration<double>(at - begin_).count();
    }

    asio::awaitable<void> ask_when_due(size_t n) {
        asio::steady_timer timer(io_, begin_ + duration_of(plan_.due_s[n]));
        co_await timer.async_wait(asio::use_awaitable);
        outcome_.answers[n].due_s = plan_.due_s[n];
        co_await ask(n);
    }

    asio::awaitable<void> ask_in_turn() {
        for (size_t n = 0; n < plan_.requests.size(); ++n) {
            outcome_.answers[n].due_s = seconds(Clock::now());
            co_await ask(n);
        }
    }

    asio::awaitable<void> ask(size_t n) {
        std::shared_ptr<HttpWire> wire = take_wire();
        Answer& answer = outcome_.answers[n];
        AnswerReader reader(answer);
        HttpWire::OnPiece on_piece = [this, &reader](std::string_view piece, Clock::time_point at) {
            reader.take(piece, seconds(at));
        };
        answer.sent_s = seconds(Clock::now());
        Result<HttpWire::Reply> reply =
            co_await wire->exchange(std::move(plan_.requests[n]), std::move(on_piece));
        answer.end_s = seconds(Clock::now());
        answer.status = reply ? reply->status : 0;
        if (!reply && answer.error.empty()) // the loop's end has its own words for it
            answer.error = reply.error().message;
        else if (!reply)
            answer.done = false;
        else if (reply->status >= 400)
            answer.error = fmt::format("HTTP {}: {:.200}", reply->status, reply->body);
        else if (!answer.done && answer.error.empty())
            answer.error = "the stream ended without its last event";
        answer.done = answer.done && answer.error.empty();
        if (wire->is_open() && plan_.keeps_connections)
            idle_.push_back(std::move(wire));
        ++ended_;
    }

    // The one that was used last: the server is the least likely to have closed it.
    std::shared_ptr<HttpWire> take_wire() {
        if (idle_.empty())
            return std::make_shared<HttpWire>(io_, plan_.online);
        std::shared_ptr<HttpWire> wire = std::move(idle_.back());
        idle_.pop_back();
        return wire;
    }

    asio::awaitable<void> watch_batch() {
        HttpWire wire(io_, *plan_.batch);
        asio::steady_timer timer(io_);
        for (int64_t n = 0;; ++n) {
            timer.expires_at(begin_ + n * kLookEvery);
            co_await timer.async_wait(asio::use_awaitable);
            std::string request = metrics_request();
            Result<HttpWire::Reply> reply = co_await wire.exchange(std::move(request), nullptr);
            const double at = seconds(Clock::now());
            if (!reply || reply->status != 200)
                continue; // a gap in the series, no more
            if (const auto counters = batch_counters(reply->body))
                outcome_.batch.push_back({at, *counters});
        }
    }

    asio::awaitable<void> end_when_over() {
        asio::steady_timer timer(io_);
        for (;;) {
            timer.expires_after(kStopEvery);
            co_await timer.async_wait(asio::use_awaitable);
            const double now = seconds(Clock::now());
            outcome_.stopped = StopSignals::asked();
            const bool answered = ended_ == plan_.requests.size();
            if (outcome_.stopped || (now >= plan_.window_s && answered) ||
                now >= plan_.window_s + plan_.patience_s)
                break;
        }
        const double now = seconds(Clock::now());
        for (Answer& answer : outcome_.answers)
            if (answer.end_s == 0 && answer.error.empty())
                answer.error = outcome_.stopped
                                   ? "stopped by a signal"
                                   : fmt::format("no answer by the phase's {:.0f}th second", now);
        tasks_.close();
        idle_.clear();
    }

    LoopPlan plan_;
    asio::io_context io_{1};
    Clock::time_point begin_;
    LoopOutcome outcome_;
    std::vector<std::shared_ptr<HttpWire>> idle_;
    size_t ended_ = 0;
    http::TaskGroup tasks_; // last: its tasks use all above
};

} // namespace

Result<LoopOutcome> run_loop(LoopPlan plan) {
    if (plan.requests.size() != plan.due_s.size() && !plan.one_by_one)
        return fail(ErrorCode::kInternal, "each request has a moment at which it is due");
    Loop loop(std::move(plan));
    return loop.run();
}

} // namespace berth::cli::bench
