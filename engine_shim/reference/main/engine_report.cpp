// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/engine.h"

#include <algorithm>

// What an engine says of itself: its counters, and how its requests fare.
namespace berth::engine {

namespace {

Nanoseconds duration(double seconds) {
    return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(seconds));
}

} // namespace

void Engine::publish() {
    const EngineStats& counts = parts_.scheduler.counts();
    EngineStats stats = counts;
    stats.requests_running = parts_.scheduler.running_count();
    stats.requests_waiting = parts_.scheduler.waiting_count();
    stats.blocks_total = parts_.scheduler.allocator().total();
    stats.blocks_free = parts_.scheduler.allocator().free();
    stats.gate_pauses = parts_.host.gate_pauses();
    stats.weights_private = settings_.weights_private;
    stats.held = parts_.memory.offloaded() ? "Offloaded" : "";
    stats.last_error = last_error_;
    EngineHost::Load load{stats.requests_running,
                          stats.requests_waiting,
                          stats.requests_done,
                          stats.generated_tokens,
                          stats.steps,
                          parts_.memory.grant_bytes(),
                          short_of_memory()};
    const std::lock_guard lock(mutex_);
    load.waiting += submitted_.size();
    stats.ready = accepting_;
    stats_ = std::move(stats);
    parts_.host.report(load);
}

// Of those for whom there is a place among the running: whom the free blocks do not hold.
uint64_t Engine::short_of_memory() const {
    if (held())
        return 0;
    const uint64_t running = parts_.scheduler.running_count();
    uint64_t places = settings_.max_batch > running ? settings_.max_batch - running : 0;
    uint64_t free = parts_.scheduler.allocator().free();
    uint64_t found = 0;
    for (const Sequence& waiting : parts_.scheduler.waiting()) {
        if (places-- == 0)
            break;
        const uint64_t needed = parts_.scheduler.blocks_for(uint64_t{waiting.size()} + 1);
        found += needed > free ? 1 : 0;
        free -= std::min(free, needed);
    }
    return found;
}

// KV of waiting sequences that lies in host memory.
uint64_t Engine::saved_bytes() const {
    uint64_t blocks = 0;
    for (const Sequence& waiting : parts_.scheduler.waiting())
        blocks += waiting.saved ? parts_.scheduler.blocks_for(waiting.computed) : 0;
    return blocks * settings_.block_bytes;
}

Engine::Places Engine::places() const {
    Places found;
    for (const Sequence& running : parts_.scheduler.running())
        found[running.order] = running.blocks;
    return found;
}

// Of those that have run on all along.
uint64_t Engine::moved_bytes(const Places& before) const {
    uint64_t blocks = 0;
    for (const Sequence& running : parts_.scheduler.running()) {
        const auto found = before.find(running.order);
        if (found == before.end() || found->second.size() != running.blocks.size())
            continue;
        for (size_t n = 0; n < running.blocks.size(); ++n)
            blocks += running.blocks[n] != found->second[n] ? 1 : 0;
    }
    return blocks * settings_.block_bytes;
}

void Engine::on_awaited(Clock::time_point begun) {
    const std::lock_guard lock(awaited_mutex_);
    awaited_.insert(begun);
}

void Engine::on_none_awaited(Clock::time_point begun) {
    const std::lock_guard lock(awaited_mutex_);
    if (const auto found = awaited_.find(begun); found != awaited_.end())
        awaited_.erase(found);
}

void Engine::on_first_token(Clock::time_point begun, double first) {
    on_none_awaited(begun);
    parts_.host.note_first_token(duration(first));
}

void Engine::on_pace(double later) {
    parts_.host.note_pace(duration(later));
}

void Engine::on_answered(double first, double later) {
    parts_.host.note_answered(duration(first), duration(later));
}

void Engine::tell_awaited() {
    Nanoseconds longest{0};
    {
        const std::lock_guard lock(awaited_mutex_);
        if (!awaited_.empty())
            longest = Clock::now() - *awaited_.begin();
    }
    parts_.host.note_awaited(longest);
}

} // namespace berth::engine
