// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace berth::cli::bench {

// Asks the online engine as several clients do, each now and then, and compares what it answers.
// Threads of its own; all public calls are of any thread.
class OnlineLoad {
  public:
    struct Counts {
        uint64_t answered = 0;
        uint64_t different = 0;
        uint64_t failed = 0;      // while the engine was expected to be there
        uint64_t failed_away = 0; // and while it was being killed
        size_t at_once_max = 0;
        std::string first_wrong;
    };

    OnlineLoad(std::string endpoint, std::vector<std::string> prompts,
               std::vector<std::string> expected, uint32_t tokens, uint64_t seed, size_t clients);
    OnlineLoad(const OnlineLoad&) = delete;
    OnlineLoad& operator=(const OnlineLoad&) = delete;
    ~OnlineLoad() { stop(); }

    // It is about to be killed; it is back at this endpoint.
    void away();
    void back(std::string endpoint);
    Counts stop(); // waits for the requests under way

  private:
    void run(const std::stop_token& stop, size_t client);
    void ask(size_t prompt);

    const std::vector<std::string> prompts_, expected_;
    const uint32_t tokens_;
    const uint64_t seed_;
    const double idle_part_;
    std::mutex mutex_; // guards what follows
    std::string endpoint_;
    bool away_ = false;
    uint64_t turns_ = 0; // how often it went away or came back
    size_t under_way_ = 0;
    Counts counts_;
    std::vector<std::jthread> threads_;
};

// One completion, waited for.
Result<std::string> complete(const std::string& endpoint, const std::string& prompt,
                             uint32_t tokens);
// All of them, several at a time.
Result<std::vector<std::string>>
complete_all(const std::string& endpoint, const std::vector<std::string>& prompts, uint32_t tokens);

} // namespace berth::cli::bench
