// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/kept_connection.h"
#include "engine_shim/reference/serve/completion_call.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace berth::serve {

// How far a streamed answer has come, beside its tokens.
enum class AnswerStage : uint32_t {
    kNothing,
    kHeaders, // the HTTP header
    kBody,    // the events of the answer's begin, too
    kDone,    // all, but the end of the chunked body
};

// A completion request in its connection's journal. The request itself lies there as it was
// received; what reading it again would give differently goes into the memo (id, time, seed), and
// each token into an entry, before any text that it made certain is written. Where the connection
// is not kept every call is without effect. On the io thread, as the connection.
class KeptCall {
  public:
    explicit KeptCall(std::shared_ptr<http::KeptConnection> kept) : kept_(std::move(kept)) {}

    // Whether an engine before this one began to answer.
    bool resumes() const { return kept_ && kept_->resumes(); }
    // Of such a one: makes the call what it was. False: the memo is none.
    bool restore(CompletionCall& call) const;
    // What that engine gave, in its order; Corrupt where an entry cannot be of this call.
    Result<std::vector<engine::TokenEvent>> events(const CompletionCall& call,
                                                   uint32_t vocab) const;
    // How many of these the answer's written part holds.
    size_t covered() const { return kept_->covered(); }
    AnswerStage stage() const { return static_cast<AnswerStage>(kept_->stage()); }

    void begin(const CompletionCall& call);
    // It is the engine's from here on: that says when it is at work on it.
    void hand_over() const;
    void mark(engine::GenerationRequest& request) const;
    void add(size_t choice, const engine::TokenEvent& event);
    // What the next write makes whole: the text of so many events.
    void cover(size_t events, AnswerStage stage);

  private:
    std::shared_ptr<http::KeptConnection> kept_;
};

} // namespace berth::serve
