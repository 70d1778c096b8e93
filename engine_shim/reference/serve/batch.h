// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/serve/batch_file.h"
#include "engine_shim/reference/serve/engine_api.h"
#include "engine_shim/reference/text/chat_template.h"
#include "engine_shim/reference/text/tokenizer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace berth::serve {

struct BatchOptions {
    std::string input;
    std::string output;
    bool shows_progress = true;
};

// A batch's files, read and checked: an engine's start and this need not wait for each other.
struct BatchFiles {
    BatchOptions options;
    std::vector<BatchItem> items;
    BatchOutput output;

    static Result<BatchFiles> open(BatchOptions options);
};

struct BatchSummary {
    uint64_t total = 0;
    uint64_t answered = 0;      // in the output, earlier processes' answers included
    uint64_t answered_here = 0; // by this process
    uint64_t failed = 0;        // of these, with an error status
    bool stopped = false;       // before the end, by stop()
};

// Runs a batch file in OpenAI's format through the engine. Each custom_id is answered exactly once,
// whatever is killed when: an answer counts once its line is on disk, a restarted process goes on
// with those that have none. Answers that end within a short time share one write.
//
// run() blocks its thread until all is answered, stop() was called, or the output cannot be
// written. stop() may be called from any thread. The engine and the tokenizer outlive it; events
// that come after it are ignored.
class BatchRunner {
  public:
    // Nothing is started yet.
    static std::unique_ptr<BatchRunner> make(BatchFiles files, engine::EngineApi& engine,
                                             const text::Tokenizer& tokenizer,
                                             Result<text::ChatTemplate> chat);
    virtual ~BatchRunner() = default;

    virtual Result<BatchSummary> run() = 0;
    virtual void stop() = 0;
};

} // namespace berth::serve
