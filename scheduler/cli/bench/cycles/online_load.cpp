// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/cycles/online_load.h"

#include "base/http/client.h"
#include "scheduler/cli/bench/colocate/dice.h"
#include "scheduler/cli/bench/cycles/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>

namespace berth::cli::bench {

namespace {

constexpr size_t kAtOnce = 8;
constexpr std::chrono::minutes kAnswerMax{5};
// Idle after an answer, of the time that it took: what batch has to get on.
constexpr double kIdlePart = 2; // and of each client so many times that as there are
constexpr std::chrono::duration<double> kIdleMin{0.002}; // also while the engine is away

} // namespace

Result<std::string> complete(const std::string& endpoint, const std::string& prompt,
                             uint32_t tokens) {
    http::CallOptions call;
    call.headers = {{"Content-Type", "application/json"}};
    call.timeout = kAnswerMax;
    BERTH_ASSIGN(const http::Response reply,
                 http::request(endpoint, "POST", "/v1/completions",
                               json::serialize(ask_for(prompt, tokens)), call));
    BERTH_ASSIGN(const json::value body, http::json_from(reply));
    return text_of(body);
}

Result<std::vector<std::string>> complete_all(const std::string& endpoint,
                                              const std::vector<std::string>& prompts,
                                              uint32_t tokens) {
    std::vector<Result<std::string>> answers(prompts.size(),
                                             fail(ErrorCode::kInternal, "not asked"));
    std::atomic<size_t> next{0};
    {
        std::vector<std::jthread> askers;
        for (size_t n = 0; n < std::min(kAtOnce, prompts.size()); ++n)
            askers.emplace_back([&] {
                for (size_t at = next++; at < prompts.size(); at = next++)
                    answers[at] = complete(endpoint, prompts[at], tokens);
            });
    }
    std::vector<std::string> texts;
    for (Result<std::string>& answer : answers) {
        if (!answer)
            return fail_in("asking undisturbed", answer.error());
        texts.push_back(std::move(*answer));
    }
    return texts;
}

OnlineLoad::OnlineLoad(std::string endpoint, std::vector<std::string> prompts,
                       std::vector<std::string> expected, uint32_t tokens, uint64_t seed,
                       size_t clients)
    : prompts_(std::move(prompts)), expected_(std::move(expected)), tokens_(tokens), seed_(seed),
      idle_part_(kIdlePart * static_cast<double>(clients)), endpoint_(std::move(endpoint)) {
    for (size_t client = 0; client < clients; ++client)
        threads_.emplace_back([this, client](const std::stop_token& stop) { run(stop, client); });
}

void OnlineLoad::away() {
    const std::lock_guard lock(mutex_);
    away_ = true;
    ++turns_;
}

void OnlineLoad::back(std::string endpoint) {
    const std::lock_guard lock(mutex_);
    away_ = false;
    ++turns_;
    endpoint_ = std::move(endpoint);
}

OnlineLoad::Counts OnlineLoad::stop() {
    for (std::jthread& one : threads_)
        one.request_stop();
    for (std::jthread& one : threads_)
        if (one.joinable())
            one.join();
    const std::lock_guard lock(mutex_);
    return counts_;
}

void OnlineLoad::run(const std::stop_token& stop, size_t client) {
    Dice dice(seed_ + 31 + client);
    std::mutex sleeping;
    std::condition_variable_any slept;
    while (!stop.stop_requested()) {
        const auto began = std::chrono::steady_clock::now();
        ask(dice.below(prompts_.size()));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        std::unique_lock lock(sleeping);
        const std::chrono::duration<double> idle = idle_part_ * dice.exponential() * took;
        slept.wait_for(lock, stop, std::max(idle, kIdleMin), [] { return false; });
    }
}

void OnlineLoad::ask(size_t prompt) {
    std::string endpoint;
    uint64_t turns = 0;
    {
        const std::lock_guard lock(mutex_);
        if (away_)
            return;
        endpoint = endpoint_;
        turns = turns_;
        counts_.at_once_max = std::max(counts_.at_once_max, ++under_way_);
    }
    const auto answer = complete(endpoint, prompts_[prompt], tokens_);
    const std::lock_guard lock(mutex_);
    --under_way_;
    if (!answer && turns != turns_) {
        ++counts_.failed_away;
        return;
    }
    counts_.answered += answer ? 1 : 0;
    const bool differs = answer && *answer != expected_[prompt];
    counts_.different += differs ? 1 : 0;
    counts_.failed += answer ? 0 : 1;
    if (counts_.first_wrong.empty() && (!answer || differs))
        counts_.first_wrong = answer ? fmt::format("online answered '{:.80}', undisturbed '{:.80}'",
                                                   *answer, expected_[prompt])
                                     : "an online request failed: " + answer.error().message;
}

} // namespace berth::cli::bench
