// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/engine.h"

#include "base/http/server.h"
#include "base/log.h"
#include "engine_shim/reference/model/block_moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace berth::engine {

namespace {

constexpr Nanoseconds kIdleWait = std::chrono::milliseconds(100);
constexpr Nanoseconds kStopWait = std::chrono::milliseconds(5);

tl::unexpected<Error> refuse(std::string message, std::string reason) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(reason));
}

http::Leave leave_from(const std::string& name) {
    return name == "Nothing"       ? http::Leave::kNothing
           : name == "Connections" ? http::Leave::kConnections
           : name == "Late"        ? http::Leave::kLate
                                   : http::Leave::kRequests;
}

} // namespace

Engine::Engine(EngineSettings settings, Parts parts)
    : settings_(std::move(settings)), parts_(parts), leaves_(http::Leave::kRequests) {
    stats_.ready = true; // made only after the memory's first verified step
    stats_.blocks_total = stats_.blocks_free = parts_.scheduler.allocator().total();
}

Status Engine::check(const GenerationRequest& request) const {
    if (request.prompt.empty())
        return refuse("the prompt has no tokens", "EmptyPrompt");
    if (request.max_new_tokens == 0)
        return refuse("max_new_tokens is 0: at least one token is generated", "BadMaxTokens");
    const auto is_outside = [&](int32_t token) {
        return token < 0 || static_cast<uint32_t>(token) >= settings_.vocab;
    };
    for (const int32_t token : request.prompt) {
        if (is_outside(token))
            return refuse(fmt::format("token {} of the prompt is outside the vocabulary of {}",
                                      token, settings_.vocab),
                          "BadToken");
    }
    if (request.generated.size() >= request.max_new_tokens ||
        std::any_of(request.generated.begin(), request.generated.end(), is_outside))
        return refuse(fmt::format("{} tokens are said to be generated, of {} at most, each below "
                                  "{}: they are not",
                                  request.generated.size(), request.max_new_tokens,
                                  settings_.vocab),
                      "BadGenerated");
    const uint64_t tokens = request.prompt.size() + uint64_t{request.max_new_tokens};
    if (tokens > settings_.max_context)
        return refuse(fmt::format("{} prompt tokens and {} new ones are over the context of {}",
                                  request.prompt.size(), request.max_new_tokens,
                                  settings_.max_context),
                      "ContextTooLong");
    if (!std::isfinite(request.temperature) || request.temperature < 0)
        return refuse(fmt::format("temperature {} is not 0 or more", request.temperature),
                      "BadTemperature");
    if (!(request.top_p > 0 && request.top_p <= 1))
        return refuse(fmt::format("top_p {} is not in (0, 1]", request.top_p), "BadTopP");
    if (request.top_k < 0)
        return refuse(fmt::format("top_k {} is negative", request.top_k), "BadTopK");
    const uint32_t needed = parts_.scheduler.blocks_for(tokens);
    if (needed > settings_.capacity_blocks)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("{} tokens need {} KV blocks and the largest grant holds {}",
                                tokens, needed, settings_.capacity_blocks),
                    "KvTooSmall");
    return {};
}

Status Engine::submit(GenerationRequest request, TokenCallback callback) {
    BERTH_TRY(check(request));
    {
        const std::lock_guard lock(mutex_);
        if (!accepting_)
            return fail(ErrorCode::kUnavailable, "the engine is stopping", "Stopping");
        if (submitted_.size() + stats_.requests_waiting >= settings_.queue_max)
            return fail(
                ErrorCode::kResourceExhausted,
                fmt::format("{} requests are waiting: try again later", settings_.queue_max),
                "QueueFull");
        submitted_.push_back({std::move(request), std::move(callback)});
    }
    parts_.host.notify();
    return {};
}

void Engine::cancel(const std::string& id) {
    {
        const std::lock_guard lock(mutex_);
        cancelled_.push_back(id);
    }
    parts_.host.notify();
}

EngineStats Engine::stats() const {
    const bool paused = parts_.host.paused();
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.requests_waiting += submitted_.size();
    if (stats.held.empty() && paused)
        stats.held = "Paused";
    stats.ready = stats.ready && stats.held.empty();
    return stats;
}

void Engine::request_stop(Nanoseconds grace) {
    stop_grace_ns_ = grace.count();
    parts_.host.notify();
}

Status Engine::serve(uint64_t generation) {
    if (socket_side_ == nullptr)
        return fail(ErrorCode::kFailedPrecondition,
                    "this engine was given no socket to serve: berthd passes one on where the "
                    "policy's engine.listen says so",
                    "NoSocket");
    if (stopping_)
        return fail(ErrorCode::kFailedPrecondition, "the engine is stopping", "Stopping");
    has_served_ = true; // whatever comes of it: it is asked to
    BERTH_TRY(socket_side_->serve(generation));
    parts_.host.serves_as(generation);
    return {};
}

void Engine::begin_stop(Nanoseconds grace, bool hand_over) {
    stopping_ = true;
    hands_over_ = hands_over_ || (hand_over && socket_side_ != nullptr);
    // A part of the grace is left for answering and leaving; a successor needs no answers of ours.
    const Nanoseconds drain = hands_over_ ? grace : grace * 3 / 4;
    stop_at_ = Clock::now() + (settings_.drain_on_stop ? drain : Nanoseconds(0));
    // Whoever comes now waits for the next process, whenever that is; so do those whose requests
    // have ended here.
    if (socket_side_ != nullptr)
        socket_side_->leave(hands_over_ ? leaves_ : http::Leave::kLate);
    if (hands_over_) {
        if (leaves_ != http::Leave::kLate)
            parts_.host.has_left_socket();
        return;
    }
    const std::lock_guard lock(mutex_);
    accepting_ = false;
}

bool Engine::may_end() {
    if (!stopping_ || held() || Clock::now() >= stop_at_)
        return stopping_;
    return hands_over_ ? socket_side_->unfinished() == 0 : parts_.scheduler.idle();
}

protocol::CommandDone Engine::obey(const protocol::Command& command) {
    protocol::CommandDone done;
    done.id = command.id;
    Status status;
    const uint64_t saved_before = saved_bytes();
    // Nothing else moves a block, and a Pause has no time for looking.
    const bool may_move = command.kind == protocol::CommandKind::kShrink;
    const Places places_before = may_move ? places() : Places();
    switch (command.kind) {
    case protocol::CommandKind::kPause:
        status = parts_.memory.fence();
        break;
    case protocol::CommandKind::kOffload:
        status = parts_.memory.offload(command, done);
        break;
    case protocol::CommandKind::kRestore:
        status = parts_.memory.restore(command, done);
        break;
    case protocol::CommandKind::kShrink:
        status = parts_.memory.shrink(command, done);
        break;
    case protocol::CommandKind::kGrow:
        status = parts_.memory.grow(command, done);
        break;
    case protocol::CommandKind::kResume:
    case protocol::CommandKind::kStop:
        break;
    case protocol::CommandKind::kServe:
        status = serve(command.generation);
        break;
    }
    if (const uint32_t lost = parts_.memory.take_not_saved(); lost > 0)
        log::warn("command={}: host memory holds no more saved KV, {} sequences will be recomputed",
                  protocol::to_string(command.kind), lost);
    done.grant_bytes = parts_.memory.grant_bytes();
    done.host_bytes = parts_.memory.host_bytes();
    if (const uint64_t saved = saved_bytes(); saved > saved_before)
        done.saved_bytes = saved - saved_before;
    done.moved_bytes = moved_bytes(places_before);
    if (!status) {
        log::warn("command={} failed: {}", protocol::to_string(command.kind),
                  status.error().message);
        last_error_ = status.error().message;
        done.error = status.error();
    }
    return done;
}

void Engine::obey_commands() {
    while (auto command = parts_.host.next_command()) {
        if (command->kind == protocol::CommandKind::kStop) {
            // What has been left for later is not taken back.
            if (!stopping_ || leaves_ != http::Leave::kLate)
                leaves_ = leave_from(command->leaves);
            begin_stop(std::chrono::milliseconds(std::max<int64_t>(command->grace_ms, 0)),
                       command->hand_over);
            stop_command_ = *command; // answered when it is done
        } else {
            protocol::CommandDone done = obey(*command);
            publish();
            parts_.host.complete(std::move(done));
        }
    }
    // Nobody has said that no other process will come: what can be left is left.
    if (const int64_t grace = stop_grace_ns_.exchange(-1); grace >= 0) {
        const bool leaves = socket_side_ != nullptr;
        begin_stop(Nanoseconds(leaves ? grace * 3 / 4 : grace), leaves);
    }
}

void Engine::take_submissions() {
    std::vector<Submission> submitted;
    std::vector<std::string> cancelled;
    {
        const std::lock_guard lock(mutex_);
        submitted.swap(submitted_);
        cancelled.swap(cancelled_);
        stats_.requests_waiting += submitted.size();
    }
    for (Submission& one : submitted)
        parts_.scheduler.add(std::move(one.request), told_late(std::move(one.callback)));
    for (const std::string& id : cancelled)
        parts_.scheduler.cancel(id);
}

TokenCallback Engine::told_late(TokenCallback callback) {
    if (socket_side_ == nullptr)
        return callback;
    return [this, callback = std::move(callback)](const TokenEvent& event) {
        if (event.finish_reason == FinishReason::kError)
            failed_.emplace_back(callback, event);
        else
            callback(event);
    };
}

void Engine::tell_failed() {
    for (const auto& [callback, event] : std::exchange(failed_, {}))
        callback(event);
}

bool Engine::at_layer(uint32_t layer) {
    if (settings_.fence_layers > 0 && layer % settings_.fence_layers == 0 &&
        !parts_.model.waits_for_device() && !parts_.memory.fence())
        return false;
    if (stop_grace_ns_ >= 0 && !settings_.drain_on_stop)
        return false;
    if (!parts_.host.must_yield())
        return true;
    if (!parts_.memory.fence())
        return false;
    return parts_.host.yield_here();
}

// Whoever waits for a first token waits for no turn of others: theirs come between later tokens,
// where an answer has its slack.
void Engine::give_turn(Nanoseconds step) {
    stepped_ += step;
    if (parts_.scheduler.idle()) // the gate is open
        stepped_ = Nanoseconds(0);
    else if (!parts_.scheduler.owes_first_token()) {
        const auto now = Clock::now();
        const Scheduler& scheduler = parts_.scheduler;
        for (const auto* answers : {&scheduler.running(), &scheduler.waiting()})
            for (const Sequence& answer : *answers)
                parts_.host.note_progress(answer.generated() - answer.first, now - answer.first_at);
        parts_.host.between_steps(std::exchange(stepped_, Nanoseconds(0)));
    }
}

// A failed step has ended its requests. Whether the device still computes is found by the canary.
Status Engine::step() {
    const auto began = Clock::now();
    parts_.host.step_begins();
    const auto outcome =
        parts_.scheduler.step(parts_.model, [this](uint32_t layer) { return at_layer(layer); });
    parts_.host.step_ends();
    if (const std::string warning = parts_.model.take_warning(); !warning.empty())
        log::warn("{}", warning);
    if (outcome && *outcome == Scheduler::Outcome::kIdle) {
        if (!std::exchange(starved_, true))
            log::warn("{} requests wait for a larger grant: at least {} KV blocks are needed, {} "
                      "holds {}",
                      parts_.scheduler.waiting_count(), least_blocks(parts_.scheduler),
                      format_bytes(parts_.memory.grant_bytes()),
                      parts_.scheduler.allocator().total());
        parts_.host.wait(kIdleWait);
        return {};
    }
    starved_ = false;
    if (outcome) {
        give_turn(Clock::now() - began);
        return {};
    }
    last_error_ = outcome.error().message;
    log::error("step failed: {}", last_error_);
    Status works = parts_.memory.verify();
    if (works)
        tell_failed();
    return works;
}

void Engine::rest() {
    const auto began = Clock::now();
    parts_.host.wait(stopping_ ? kStopWait : kIdleWait);
    has_rested_ = has_rested_ || Clock::now() - began >= kIdleWait;
}

// Once somebody is answered, blocks hold something. Who is to serve at once is told so at once, and
// has nothing to rehearse.
bool Engine::may_rehearse() const {
    return parts_.rehearsal != nullptr && !parts_.rehearsal->is_over() && socket_side_ != nullptr &&
           has_rested_ && !has_served_ && !stopping_ && !held() && parts_.scheduler.idle();
}

Status Engine::rehearse() {
    const auto began = Clock::now();
    parts_.host.step_begins();
    const Status done = parts_.rehearsal->next([this](uint32_t layer) { return at_layer(layer); });
    parts_.host.step_ends();
    if (!done) {
        log::warn("a prompt that nobody waits for failed: {}", done.error().message);
        return parts_.memory.verify();
    }
    log::info("rehearsed ms={:.1f} over={}",
              std::chrono::duration<double, std::milli>(Clock::now() - began).count(),
              parts_.rehearsal->is_over());
    return {};
}

void Engine::end_all(bool leaves) {
    if (leaves && socket_side_ != nullptr)
        socket_side_->leave(http::Leave::kRequests);
    tell_failed();
    {
        const std::lock_guard lock(mutex_);
        accepting_ = false;
    }
    take_submissions();
    const Error error{ErrorCode::kUnavailable, "the engine has stopped", "Stopping", 0};
    parts_.scheduler.cancel_all(error);
    publish();
    if (stop_command_) {
        protocol::CommandDone done;
        done.id = stop_command_->id;
        done.grant_bytes = parts_.memory.grant_bytes();
        parts_.host.complete(std::move(done));
    }
}

Status Engine::run() {
    Status status;
    while (status) {
        obey_commands();
        take_submissions();
        if (may_end())
            break;
        publish();
        tell_awaited();
        if (held() || parts_.scheduler.idle()) {
            if (may_rehearse())
                status = rehearse();
            else
                rest();
            continue;
        }
        status = step();
    }
    end_all(/*leaves=*/hands_over_ || !status);
    return status;
}

} // namespace berth::engine
