// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/units.h"
#include "engine_shim/reference/model/block_allocator.h"
#include "engine_shim/reference/model/saved_kv.h"
#include "engine_shim/reference/model/step_model.h"
#include "engine_shim/reference/serve/engine_api.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace berth::engine {

struct SchedulerLimits {
    uint32_t batch_max = 16;       // sequences that run together
    uint32_t prefill_tokens = 512; // prompt tokens a step, over all sequences
    uint32_t block_tokens = 16;
    // Batch-invariant: chunks begin at multiples of prefill_tokens, one sequence's chunk a step,
    // and tokens that a preempted sequence had generated are fed again one by one, as they were at
    // first.
    bool batch_invariant = false;
    // What a prompt's blocks held stays in them while nobody needs the room, and a later prompt
    // that begins the same goes on from there.
    bool keep_prefixes = false;
};

// One request on its way. `computed` tokens have keys and values in `blocks`, or in `saved`.
struct Sequence {
    GenerationRequest request;
    TokenCallback callback;
    std::vector<int32_t> tokens; // prompt, then generated
    std::vector<uint32_t> blocks;
    std::unique_ptr<SavedKv> saved; // while it waits: what its blocks held
    uint32_t computed = 0;
    uint64_t order = 0; // of arrival
    uint32_t first = 0; // generated() once this engine had given its first token
    std::chrono::steady_clock::time_point first_at;
    bool is_computed = false;
    std::vector<BlockAllocator::Key> keys; // of its first blocks: each stands for all up to it

    uint32_t prompt_size() const { return static_cast<uint32_t>(request.prompt.size()); }
    uint32_t size() const { return static_cast<uint32_t>(tokens.size()); }
    uint32_t generated() const { return size() - prompt_size(); }
};

// Continuous batching: each step takes every decoding sequence's next token and up to
// prefill_tokens of prompts, oldest first. A sequence is admitted when blocks for its prompt are
// there, and passed over while all of the memory could not hold it; when blocks run out the
// youngest goes back to waiting and is recomputed later, but for what is still in its blocks. Of
// suspects one runs at a time until it has had a token, whoever waits. Knows nothing of tensors.
// Engine thread only; callbacks run inside step() and cancel() and must not call back into it.
class Scheduler {
  public:
    enum class Outcome { kIdle, kStepped, kAbandoned };

    Scheduler(SchedulerLimits limits, std::vector<int32_t> eos_tokens);

    void add(GenerationRequest request, TokenCallback callback);
    void cancel(const std::string& id);
    // Ends every request as cancelled, for this reason.
    void cancel_all(const Error& why);
    // One step. A model's failure ends the requests of that step and is returned.
    Result<Outcome> step(StepModel& model, const LayerHook& hook);

    // For those who change the memory: it may grow at any time, and shrink by blocks that are free.
    BlockAllocator& allocator() { return allocator_; }
    // Oldest first. Blocks may be exchanged for others that hold the same.
    std::list<Sequence>& running() { return running_; }
    const std::list<Sequence>& running() const { return running_; }
    const std::list<Sequence>& waiting() const { return waiting_; }
    // A running sequence gives its blocks back and waits: to go on with what was saved of them, or
    // to be recomputed.
    void suspend(uint64_t order, std::unique_ptr<SavedKv> saved);
    // Lets in who waits, as each step does first.
    void admit();

    bool idle() const { return running_.empty() && waiting_.empty(); }
    uint64_t running_count() const { return running_.size(); }
    uint64_t waiting_count() const { return waiting_.size(); }
    // The best that a step of prompts alone has come to; 0: there was none worth measuring.
    double prefill_tokens_per_ms() const { return prefill_tokens_per_ms_; }
    // Somebody has had no token of this engine yet.
    bool owes_first_token() const;
    uint32_t blocks_for(uint64_t tokens) const;
    const EngineStats& counts() const {
        return counts_;
    } // requests_done, tokens, steps, preemptions

  private:
    using Iterator = std::list<Sequence>::iterator;
    struct Part {
        Iterator sequence;
        uint32_t tokens = 0;
        bool samples = false;
    };
    bool reserve(Iterator sequence, uint32_t tokens);
    void send_back(Iterator sequence);
    void release(Sequence& sequence);
    std::span<const BlockAllocator::Key> keys_of(Sequence& sequence, uint32_t tokens) const;
    void take_prefix(Sequence& sequence);
    void send_back_too_large();
    bool prefilling(const Sequence& sequence) const;
    uint32_t prefill_end(const Sequence& sequence) const;
    std::vector<Part> plan();
    void plan_prefill(std::vector<Part>& parts);
    std::vector<StepItem> items_of(const std::vector<Part>& parts) const;
    void take(const Part& part, const SampledToken* sampled);
    void finish(Iterator sequence, TokenEvent event);
    void end_with(std::list<Sequence>& from, Iterator sequence, FinishReason reason,
                  const Error* error);
    void begin(const std::vector<Part>& parts) const;
    void measure(const std::vector<Part>& parts, Nanoseconds took);
    bool is_stop(const Sequence& sequence, int32_t token) const;

    const SchedulerLimits limits_;
    const std::vector<int32_t> eos_tokens_;
    BlockAllocator allocator_;
    std::list<Sequence> running_; // by order
    std::list<Sequence> waiting_; // by order
    uint64_t next_order_ = 0;
    double prefill_tokens_per_ms_ = 0;
    EngineStats counts_;
};

} // namespace berth::engine
