// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/scheduler.h"

#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <numeric>
#include <utility>

namespace berth::engine {

Scheduler::Scheduler(SchedulerLimits limits, std::vector<int32_t> eos_tokens)
    : limits_(limits), eos_tokens_(std::move(eos_tokens)) {}

uint32_t Scheduler::blocks_for(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens + limits_.block_tokens - 1) / limits_.block_tokens);
}

void Scheduler::add(GenerationRequest request, TokenCallback callback) {
    Sequence sequence;
    sequence.tokens = request.prompt;
    sequence.tokens.insert(sequence.tokens.end(), request.generated.begin(),
                           request.generated.end());
    sequence.request = std::move(request);
    sequence.callback = std::move(callback);
    sequence.order = next_order_++;
    waiting_.push_back(std::move(sequence));
}

void Scheduler::end_with(std::list<Sequence>& from, Iterator sequence, FinishReason reason,
                         const Error* error) {
    TokenEvent event;
    event.id = sequence->request.id;
    event.index = sequence->generated();
    event.finished = true;
    event.finish_reason = reason;
    if (error != nullptr)
        event.error = *error;
    if (reason == FinishReason::kError)
        sequence->computed = 0; // nobody knows what its blocks hold
    release(*sequence);
    const TokenCallback callback = std::move(sequence->callback);
    from.erase(sequence);
    ++counts_.requests_done;
    callback(event);
}

void Scheduler::cancel(const std::string& id) {
    for (std::list<Sequence>* list : {&running_, &waiting_}) {
        const auto found = std::find_if(list->begin(), list->end(), [&](const Sequence& sequence) {
            return sequence.request.id == id;
        });
        if (found != list->end())
            return end_with(*list, found, FinishReason::kCancelled, nullptr);
    }
}

void Scheduler::cancel_all(const Error& why) {
    for (std::list<Sequence>* list : {&running_, &waiting_}) {
        while (!list->empty())
            end_with(*list, list->begin(), FinishReason::kCancelled, &why);
    }
}

// Each key is a hash of the one before and of its own block's tokens.
std::span<const BlockAllocator::Key> Scheduler::keys_of(Sequence& sequence, uint32_t tokens) const {
    const size_t count = tokens / limits_.block_tokens;
    while (sequence.keys.size() < count) {
        const auto block =
            std::span<const int32_t>(sequence.tokens)
                .subspan(sequence.keys.size() * limits_.block_tokens, limits_.block_tokens);
        std::string before = sequence.keys.empty() ? std::string() : sequence.keys.back();
        before.append(reinterpret_cast<const char*>(block.data()), block.size_bytes());
        sequence.keys.push_back(sha256_hex(before));
    }
    return std::span(sequence.keys).first(count);
}

// Batch-invariant: tokens that were decoded are others, bit by bit, than the same in a prompt.
void Scheduler::release(Sequence& sequence) {
    const uint32_t known = limits_.batch_invariant
                               ? std::min(sequence.computed, sequence.prompt_size())
                               : sequence.computed;
    if (limits_.keep_prefixes)
        allocator_.release(sequence.blocks, keys_of(sequence, known));
    else
        allocator_.release(sequence.blocks);
    sequence.blocks.clear();
}

// One token at least is left to be computed, and batch-invariant chunks begin where they always do.
void Scheduler::take_prefix(Sequence& sequence) {
    if (!limits_.keep_prefixes || sequence.computed > 0)
        return;
    const uint32_t unit = limits_.batch_invariant
                              ? std::lcm(limits_.block_tokens, limits_.prefill_tokens)
                              : limits_.block_tokens;
    const auto keys = keys_of(sequence, prefill_end(sequence) - 1);
    const uint32_t tokens = allocator_.held(keys) * limits_.block_tokens / unit * unit;
    sequence.blocks = allocator_.take(keys.first(tokens / limits_.block_tokens));
    sequence.computed = tokens;
    counts_.prefix_tokens += tokens;
}

void Scheduler::send_back(Iterator sequence) {
    release(*sequence);
    sequence->computed = 0;
    if (std::exchange(sequence->is_computed, false) && sequence->request.on_work)
        sequence->request.on_work(false);
    const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const Sequence& waiting) {
        return waiting.order > sequence->order;
    });
    waiting_.splice(place, running_, sequence);
}

void Scheduler::suspend(uint64_t order, std::unique_ptr<SavedKv> saved) {
    const auto sequence = std::find_if(running_.begin(), running_.end(),
                                       [&](const Sequence& one) { return one.order == order; });
    assert(sequence != running_.end());
    const uint32_t computed = saved ? sequence->computed : 0;
    send_back(sequence);
    sequence->saved = std::move(saved);
    sequence->computed = computed;
}

// Oldest first and never past one that does not fit now: a long prompt must not starve. One that
// all blocks together could not hold waits for more of them and keeps nobody from running.
void Scheduler::admit() {
    bool has_suspect =
        std::ranges::any_of(running_, [](const Sequence& one) { return one.request.is_suspect; });
    for (auto next = waiting_.begin();
         next != waiting_.end() && running_.size() < limits_.batch_max;) {
        const auto sequence = next++;
        const uint32_t needed = blocks_for(uint64_t{sequence->size()} + 1);
        if (needed > allocator_.total() || (has_suspect && sequence->request.is_suspect))
            continue;
        // Brought back without a spare block for each neighbour it would soon be sent away again.
        const uint64_t spare = sequence->saved ? running_.size() : 0;
        if (needed + spare > allocator_.free())
            return;
        has_suspect = has_suspect || sequence->request.is_suspect;
        if (!sequence->saved)
            take_prefix(*sequence);
        const auto rest =
            *allocator_.allocate(needed - static_cast<uint32_t>(sequence->blocks.size()));
        sequence->blocks.insert(sequence->blocks.end(), rest.begin(), rest.end());
        if (const auto saved = std::move(sequence->saved)) {
            // A copy that fails says that the device does: the next step will tell.
            if (!saved->bring_back(sequence->blocks))
                sequence->computed = 0;
        }
        const auto place =
            std::find_if(running_.begin(), running_.end(),
                         [&](const Sequence& other) { return other.order > sequence->order; });
        running_.splice(place, waiting_, sequence);
    }
}

// Blocks up to `tokens`; the youngest running sequences make room, perhaps this one itself.
bool Scheduler::reserve(Iterator sequence, uint32_t tokens) {
    const uint32_t needed = blocks_for(tokens);
    while (sequence->blocks.size() < needed) {
        auto more = allocator_.allocate(needed - static_cast<uint32_t>(sequence->blocks.size()));
        if (more) {
            sequence->blocks.insert(sequence->blocks.end(), more->begin(), more->end());
            continue;
        }
        const auto youngest = std::prev(running_.end());
        ++counts_.preemptions;
        const bool is_self = youngest == sequence;
        send_back(youngest);
        if (is_self)
            return false;
    }
    return true;
}

// What is computed in chunks: all that is known but the token to be fed next; batch-invariant, the
// prompt alone.
uint32_t Scheduler::prefill_end(const Sequence& sequence) const {
    return limits_.batch_invariant ? sequence.prompt_size() : sequence.size();
}

bool Scheduler::prefilling(const Sequence& sequence) const {
    const uint32_t end = prefill_end(sequence);
    return sequence.computed < end &&
           (sequence.computed + 1 < end || sequence.computed < sequence.prompt_size());
}

bool Scheduler::owes_first_token() const {
    const auto has_none = [](const Sequence& one) { return one.first == 0; };
    return std::ranges::any_of(running_, has_none) || std::ranges::any_of(waiting_, has_none);
}

void Scheduler::plan_prefill(std::vector<Part>& parts) {
    uint32_t budget = limits_.prefill_tokens;
    for (auto it = running_.begin(); it != running_.end() && budget > 0; ++it) {
        if (!prefilling(*it))
            continue;
        const uint32_t left = prefill_end(*it) - it->computed;
        const uint32_t tokens = std::min(left, budget);
        parts.push_back({it, tokens, it->computed + tokens == it->size()});
        budget = limits_.batch_invariant ? 0 : budget - tokens;
    }
}

// Nobody makes room for one that all blocks together cannot hold: it waits for more of them.
void Scheduler::send_back_too_large() {
    for (auto next = running_.begin(); next != running_.end();) {
        const auto sequence = next++;
        if (blocks_for(uint64_t{sequence->computed} + 1) <= allocator_.total())
            continue;
        ++counts_.preemptions;
        send_back(sequence);
    }
}

std::vector<Scheduler::Part> Scheduler::plan() {
    send_back_too_large();
    admit();
    std::vector<Part> parts;
    for (auto next = running_.begin(); next != running_.end();) {
        const auto it = next++;
        if (prefilling(*it))
            continue;
        const bool reserved = reserve(it, it->computed + 1);
        // Making room may have sent back those behind this one.
        next = reserved ? std::next(it) : running_.end();
        if (reserved)
            parts.push_back({it, 1, it->computed + 1 == it->size()});
    }
    plan_prefill(parts);
    return parts;
}

std::vector<StepItem> Scheduler::items_of(const std::vector<Part>& parts) const {
    std::vector<StepItem> items;
    for (const Part& part : parts) {
        const Sequence& sequence = *part.sequence;
        const GenerationRequest& request = sequence.request;
        StepItem item;
        item.tokens = std::span(sequence.tokens).subspan(sequence.computed, part.tokens);
        item.position = sequence.computed;
        item.blocks = sequence.blocks;
        item.decode = !prefilling(sequence);
        item.rope_length = item.decode
                               ? sequence.computed + 1
                               : std::max(sequence.prompt_size(), sequence.computed + part.tokens);
        item.samples = part.samples;
        item.sample_index = sequence.generated();
        item.params = {request.temperature, request.top_p, request.top_k, request.seed,
                       request.logprobs};
        items.push_back(std::move(item));
    }
    return items;
}

bool Scheduler::is_stop(const Sequence& sequence, int32_t token) const {
    const auto has = [token](const std::vector<int32_t>& tokens) {
        return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
    };
    return has(sequence.request.stop_tokens) || (!sequence.request.ignore_eos && has(eos_tokens_));
}

void Scheduler::finish(Iterator sequence, TokenEvent event) {
    release(*sequence);
    const TokenCallback callback = std::move(sequence->callback);
    running_.erase(sequence);
    ++counts_.requests_done;
    callback(event);
}

void Scheduler::take(const Part& part, const SampledToken* sampled) {
    Sequence& sequence = *part.sequence;
    if (sequence.computed < sequence.prompt_size())
        counts_.prompt_tokens += part.tokens;
    sequence.computed += part.tokens;
    if (sampled == nullptr)
        return;
    TokenEvent event;
    event.id = sequence.request.id;
    event.token = sampled->token;
    event.index = sequence.generated();
    event.logprob = sampled->logprob;
    for (const auto& [token, logprob] : sampled->top)
        event.top_logprobs.push_back({token, logprob});
    sequence.tokens.push_back(sampled->token);
    if (sequence.first == 0) {
        sequence.first = sequence.generated();
        sequence.first_at = std::chrono::steady_clock::now();
    }
    sequence.request.is_suspect = false;
    ++counts_.generated_tokens;
    if (is_stop(sequence, sampled->token))
        event.finish_reason = FinishReason::kStop;
    else if (sequence.generated() >= sequence.request.max_new_tokens)
        event.finish_reason = FinishReason::kLength;
    event.finished = event.finish_reason != FinishReason::kNone;
    if (event.finished)
        finish(part.sequence, std::move(event));
    else
        sequence.callback(event);
}

void Scheduler::begin(const std::vector<Part>& parts) const {
    for (const Part& part : parts)
        if (!std::exchange(part.sequence->is_computed, true) && part.sequence->request.on_work)
            part.sequence->request.on_work(true);
}

// What waited at a gate meanwhile was slower, and counts for nothing.
void Scheduler::measure(const std::vector<Part>& parts, Nanoseconds took) {
    uint64_t tokens = 0;
    for (const Part& part : parts) {
        if (!prefilling(*part.sequence))
            return;
        tokens += part.tokens;
    }
    if (tokens * 2 >= limits_.prefill_tokens && took.count() > 0)
        prefill_tokens_per_ms_ =
            std::max(prefill_tokens_per_ms_,
                     static_cast<double>(tokens) * 1e6 / static_cast<double>(took.count()));
}

Result<Scheduler::Outcome> Scheduler::step(StepModel& model, const LayerHook& hook) {
    const std::vector<Part> parts = plan();
    if (parts.empty())
        return Outcome::kIdle;
    const std::vector<StepItem> items = items_of(parts);
    begin(parts);
    const auto begun = std::chrono::steady_clock::now();
    const auto sampled = model.step(items, hook);
    if (!sampled) {
        for (const Part& part : parts)
            end_with(running_, part.sequence, FinishReason::kError, &sampled.error());
        return fail(sampled.error());
    }
    if (!*sampled)
        return Outcome::kAbandoned;
    ++counts_.steps;
    measure(parts, std::chrono::steady_clock::now() - begun);
    size_t next = 0;
    for (const Part& part : parts) {
        assert(!part.samples || next < (*sampled)->size());
        take(part, part.samples ? &(**sampled)[next++] : nullptr);
    }
    return Outcome::kStepped;
}

} // namespace berth::engine
