// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/main/engine.h"
#include "engine_shim/reference/main/options.h"
#include "engine_shim/reference/serve/inheritance.h"

#include <memory>
#include <optional>
#include <string>

namespace berth::engine {

// Who asks the engine: the HTTP server, the batch file, or both, on one io thread of their own,
// which also minds SIGTERM and SIGINT. The engine outlives it; stop() comes after the engine's
// run() has ended.
class Frontend {
  public:
    // What needs no engine yet: the tokenizer and the chat template of `model_folder`, the batch
    // files. Any thread; waits for the disk.
    struct Prepared;
    static Result<std::shared_ptr<Prepared>>
    prepare(const Options& options, const std::string& model_folder, const std::string& model_hash);
    // Listens; requests are taken from start() on. An inherited socket is answered from serve() on.
    static Result<std::unique_ptr<Frontend>> make(const Options& options,
                                                  std::shared_ptr<Prepared> prepared,
                                                  Engine& engine,
                                                  std::optional<serve::Inheritance> inherited);
    Frontend(const Frontend&) = delete;
    Frontend& operator=(const Frontend&) = delete;
    ~Frontend(); // stops

    const std::string& endpoint() const; // empty without a server
    const std::string& identity() const; // what a request means here
    void start();                        // once; again without effect
    void stop();

    // After start(), with an inherited socket alone. For the engine too, on its commands.
    Status serve(uint64_t generation);

    // How the batch file ended: nullopt while it is unfinished.
    struct BatchEnd {
        bool complete = false;
        std::string error;
    };
    std::optional<BatchEnd> batch_end() const;

  private:
    Frontend();
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace berth::engine
