// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/serve/engine_api.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace berth::test {

// An engine without a model, for tests of the server and of batches: it answers each prompt with
// the prompt's own tokens, over and over, one token a step, several requests at a time, on a thread
// of its own. A prompt's end token ends the answer. Deterministic but for time.
class FakeEngine : public engine::EngineApi {
  public:
    struct Settings {
        std::string name = "fake";
        uint32_t vocab_size = 0;
        uint32_t max_context = 512;
        uint32_t max_batch = 8;
        size_t queue_max = 64;
        std::chrono::microseconds step{1000};
        std::vector<int32_t> eos;
        int32_t poison = -1; // a prompt with this token fails in the engine
    };

    explicit FakeEngine(Settings settings);
    ~FakeEngine() override;

    Status submit(engine::GenerationRequest request, engine::TokenCallback callback) override;
    void cancel(const std::string& id) override;
    void on_request_begin() override { ++begun_; }
    void on_request_end() override { ++ended_; }
    void on_awaited(Clock::time_point) override { ++awaited_; }
    void on_first_token(Clock::time_point, double) override {
        --awaited_;
        ++firsts_;
    }
    void on_none_awaited(Clock::time_point) override { --awaited_; }
    void on_pace(double later) override { note(paces_, later); }
    void on_answered(double, double later) override { note(answered_, later); }
    engine::EngineStats stats() const override;
    const std::string& model_name() const override { return settings_.name; }
    uint32_t vocab_size() const override { return settings_.vocab_size; }
    uint32_t max_context() const override { return settings_.max_context; }
    uint32_t max_batch() const override { return settings_.max_batch; }
    const std::vector<int32_t>& eos_tokens() const override { return settings_.eos; }
    void report_batch(uint64_t done, uint64_t total) override;

    // No step is made while it is set; `held` is what stats() says meanwhile.
    void freeze(bool frozen, std::string held = {});
    uint64_t begun() const { return begun_; }
    uint64_t ended() const { return ended_; }
    uint64_t cancelled() const { return cancelled_; }
    uint64_t in_flight() const;
    std::pair<uint64_t, uint64_t> batch_report() const;
    // What was told of latencies, in seconds a token.
    int awaited() const { return awaited_; }
    uint64_t firsts() const { return firsts_; }
    std::vector<double> paces() const { return noted(paces_); }
    std::vector<double> answered() const { return noted(answered_); }

  private:
    void note(std::vector<double>& list, double seconds) {
        const std::lock_guard lock(noted_mutex_);
        list.push_back(seconds);
    }
    std::vector<double> noted(const std::vector<double>& list) const {
        const std::lock_guard lock(noted_mutex_);
        return list;
    }
    struct Sequence {
        engine::GenerationRequest request;
        engine::TokenCallback callback;
        uint32_t generated = 0;
    };

    void loop();
    // The sequence's next event.
    engine::TokenEvent advance(Sequence& sequence) const;

    Settings settings_;
    mutable std::mutex mutex_; // guards what follows, down to `thread_`
    std::condition_variable changed_;
    std::deque<Sequence> sequences_;
    std::set<std::string> cancels_;
    engine::EngineStats stats_;
    std::pair<uint64_t, uint64_t> batch_report_;
    bool frozen_ = false;
    bool stopping_ = false;
    std::atomic<int> awaited_ = 0;
    std::atomic<uint64_t> firsts_ = 0;
    mutable std::mutex noted_mutex_; // guards both
    std::vector<double> paces_, answered_;
    std::atomic<uint64_t> begun_ = 0;
    std::atomic<uint64_t> ended_ = 0;
    std::atomic<uint64_t> cancelled_ = 0;
    std::thread thread_;
};

} // namespace berth::test
