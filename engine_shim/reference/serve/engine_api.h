// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// What the server and the batch runner know of the engine: token ids in, token events out. No torch
// type crosses this line, and no text does: the tokenizer is on the caller's side.
namespace berth::engine {

struct GenerationRequest {
    std::string id; // unique among requests in flight; the caller's choice
    std::vector<int32_t> prompt;
    // What another engine has given out for it already, of max_new_tokens: it is gone on from
    // there, with the index behind these.
    std::vector<int32_t> generated;
    uint32_t max_new_tokens = 16;
    float temperature = 1.0F;         // 0: greedy
    float top_p = 1.0F;               // in (0, 1]
    int32_t top_k = 0;                // 0: all
    uint64_t seed = 0;                // the same seed and request give the same tokens
    std::vector<int32_t> stop_tokens; // beside the model's own end tokens
    bool ignore_eos = false;          // the model's own end tokens do not end it
    // It may be what ended the processes that were at work on it: no two such requests are computed
    // together before they have had a token here.
    bool is_suspect = false;
    // On the engine's thread, if set: a step with it begins; it waits again.
    std::function<void(bool is_computed)> on_work;
    std::optional<uint32_t> logprobs; // N: each token's log-probability and the N likeliest
};

enum class FinishReason { kNone, kStop, kLength, kError, kCancelled };
// As OpenAI's `finish_reason` has them, and two more.
constexpr std::string_view to_string(FinishReason reason) {
    constexpr std::string_view kNames[] = {"", "stop", "length", "error", "cancelled"};
    return kNames[static_cast<int>(reason)];
}

struct TokenLogprob {
    int32_t token = 0;
    float logprob = 0;
};

// One generated token, or the end without one. The last event of a request has finished = true:
// with a token on kLength; on kStop `token` is the one that stopped it and is no part of the text;
// on kError and kCancelled token is -1. A request that the engine's own end cuts short is
// kCancelled with an Unavailable error: a batch runner records nothing for it, and the next engine
// does it again.
struct TokenEvent {
    std::string id;
    int32_t token = -1;
    uint32_t index = 0; // 0 for the first generated token
    bool finished = false;
    FinishReason finish_reason = FinishReason::kNone;
    std::optional<Error> error; // with kError; kCancelled by the engine's end
    float logprob = 0;          // where the request asked for it
    std::vector<TokenLogprob> top_logprobs;
};
using TokenCallback = std::function<void(const TokenEvent&)>;

struct EngineStats {
    uint64_t requests_running = 0;
    uint64_t requests_waiting = 0;
    uint64_t requests_done = 0;
    uint64_t prompt_tokens = 0;    // prefilled, recomputation counted again
    uint64_t prefix_tokens = 0;    // found computed already
    uint64_t generated_tokens = 0; // given out
    uint64_t steps = 0;
    uint64_t preemptions = 0; // sequences sent back to waiting for lack of blocks
    uint64_t blocks_total = 0;
    uint64_t blocks_free = 0;
    uint64_t gate_pauses = 0;
    bool weights_private = false; // loaded for this process alone
    bool ready = false;           // one step was verified and the engine is not held
    std::string held;             // "", "Paused", "Offloaded"
    std::string last_error;       // of the last step that failed, empty if none
};

// Thread rule: every call is thread-safe and short; none waits for a step. Callbacks run on the
// engine's thread between steps: they must not block and must not throw; they may call submit() and
// cancel(). The engine outlives its callers.
class EngineApi {
  public:
    EngineApi() = default;
    EngineApi(const EngineApi&) = delete;
    EngineApi& operator=(const EngineApi&) = delete;
    virtual ~EngineApi() = default;

    // InvalidArgument: empty prompt, a token outside the vocabulary, prompt + max_new_tokens over
    // max_context(), bad sampling values. ResourceExhausted: the queue is full (retry later), or KV
    // memory could never hold it. Unavailable: the engine is stopping. After an error no callback
    // comes.
    virtual Status submit(GenerationRequest request, TokenCallback callback) = 0;
    // Ends a request with a kCancelled event; unknown ids are no error (it may just have ended).
    virtual void cancel(const std::string& id) = 0;
    // Demand on the gate, for classes that raise it: from having read a request's first bytes to
    // having answered it. The server calls begin and end in pairs; nothing happens for other
    // classes.
    virtual void on_request_begin() = 0;
    virtual void on_request_end() = 0;
    // How a request fares, in seconds (answer_clock.h); any thread. It waits for its first token
    // since `begun`; it has it, or will have none; a token takes this long of late; it is answered:
    // until its first token, and per token after it (0: it had one).
    using Clock = std::chrono::steady_clock;
    virtual void on_awaited(Clock::time_point begun) = 0;
    virtual void on_first_token(Clock::time_point begun, double first) = 0;
    virtual void on_none_awaited(Clock::time_point begun) = 0;
    virtual void on_pace(double later) = 0;
    virtual void on_answered(double first, double later) = 0;

    virtual EngineStats stats() const = 0;
    virtual const std::string& model_name() const = 0; // as served: `--served-model-name`
    virtual uint32_t vocab_size() const = 0;
    virtual uint32_t max_context() const = 0;
    virtual uint32_t max_batch() const = 0; // sequences that decode together
    virtual const std::vector<int32_t>& eos_tokens() const = 0;
    // Progress of the batch file, for berthd's report (Client::Counters).
    virtual void report_batch(uint64_t done, uint64_t total) = 0;
};

} // namespace berth::engine
