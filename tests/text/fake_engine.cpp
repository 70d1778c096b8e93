// SPDX-License-Identifier: Apache-2.0
#include "tests/text/fake_engine.h"

#include <algorithm>

namespace berth::test {

using engine::FinishReason;
using engine::TokenEvent;

FakeEngine::FakeEngine(Settings settings) : settings_(std::move(settings)) {
    thread_ = std::thread([this] { loop(); });
}

FakeEngine::~FakeEngine() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

Status FakeEngine::submit(engine::GenerationRequest request, engine::TokenCallback callback) {
    std::lock_guard lock(mutex_);
    if (stopping_)
        return fail(ErrorCode::kUnavailable, "the engine is stopping");
    if (request.prompt.empty() ||
        request.prompt.size() + request.max_new_tokens > settings_.max_context)
        return fail(ErrorCode::kInvalidArgument, "the prompt is empty or too long");
    if (sequences_.size() >= settings_.queue_max)
        return fail(ErrorCode::kResourceExhausted, "the queue is full");
    stats_.prompt_tokens += request.prompt.size();
    const auto generated = static_cast<uint32_t>(request.generated.size());
    sequences_.push_back({std::move(request), std::move(callback), generated});
    changed_.notify_all();
    return {};
}

void FakeEngine::cancel(const std::string& id) {
    std::lock_guard lock(mutex_);
    cancels_.insert(id);
    changed_.notify_all();
}

engine::EngineStats FakeEngine::stats() const {
    std::lock_guard lock(mutex_);
    engine::EngineStats stats = stats_;
    stats.requests_running = std::min<uint64_t>(sequences_.size(), settings_.max_batch);
    stats.requests_waiting = sequences_.size() - stats.requests_running;
    stats.blocks_total = 100;
    stats.blocks_free = 100 - std::min<uint64_t>(100, stats.requests_running);
    stats.ready = true;
    return stats;
}

void FakeEngine::report_batch(uint64_t done, uint64_t total) {
    std::lock_guard lock(mutex_);
    batch_report_ = {done, total};
}

void FakeEngine::freeze(bool frozen, std::string held) {
    std::lock_guard lock(mutex_);
    frozen_ = frozen;
    stats_.held = std::move(held);
    changed_.notify_all();
}

uint64_t FakeEngine::in_flight() const {
    std::lock_guard lock(mutex_);
    return sequences_.size();
}

std::pair<uint64_t, uint64_t> FakeEngine::batch_report() const {
    std::lock_guard lock(mutex_);
    return batch_report_;
}

TokenEvent FakeEngine::advance(Sequence& sequence) const {
    const engine::GenerationRequest& request = sequence.request;
    TokenEvent event;
    event.id = request.id;
    event.index = sequence.generated;
    bool is_poisoned = std::find(request.prompt.begin(), request.prompt.end(), settings_.poison) !=
                       request.prompt.end();
    if (is_poisoned) {
        event.finished = true;
        event.finish_reason = FinishReason::kError;
        event.error = Error{ErrorCode::kInternal, "the step failed", "", 0};
        return event;
    }
    event.token = request.prompt[sequence.generated % request.prompt.size()];
    ++sequence.generated;
    const std::vector<int32_t>& eos = settings_.eos;
    bool is_end =
        !request.ignore_eos && std::find(eos.begin(), eos.end(), event.token) != eos.end();
    event.finished = is_end || sequence.generated == request.max_new_tokens;
    if (event.finished)
        event.finish_reason = is_end ? FinishReason::kStop : FinishReason::kLength;
    return event;
}

void FakeEngine::loop() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        auto has_work = [this] {
            return stopping_ || !cancels_.empty() || (!sequences_.empty() && !frozen_);
        };
        changed_.wait(lock, has_work);
        // A step takes its time; wait_for instead of a sleep, so that the end does not wait.
        changed_.wait_for(lock, settings_.step, [this] { return stopping_; });
        std::vector<std::pair<engine::TokenCallback, TokenEvent>> events;
        std::set<std::string> cancels = std::exchange(cancels_, {});
        size_t at = 0;
        std::erase_if(sequences_, [&](Sequence& sequence) {
            if (cancels.contains(sequence.request.id)) {
                TokenEvent event;
                event.id = sequence.request.id;
                event.finished = true;
                event.finish_reason = FinishReason::kCancelled;
                events.emplace_back(sequence.callback, event);
                ++cancelled_;
                return true;
            }
            if (frozen_ || at++ >= settings_.max_batch)
                return false;
            TokenEvent event = advance(sequence);
            events.emplace_back(sequence.callback, event);
            ++stats_.generated_tokens;
            stats_.requests_done += event.finished ? 1 : 0;
            return event.finished;
        });
        ++stats_.steps;
        lock.unlock();
        for (auto& [callback, event] : events)
            callback(event);
        lock.lock();
    }
}

} // namespace berth::test
