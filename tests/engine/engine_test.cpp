// SPDX-License-Identifier: Apache-2.0
// Goal: the engine obeys berthd's commands at any moment and its answers do not show it. Method: a
// real (tiny) decoder and grant on the host device; the test plays berthd.
#include "engine_shim/reference/main/engine.h"
#include "tests/engine/checkpoint_source.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <thread>

namespace berth::engine {
namespace {

using protocol::Command;
using protocol::CommandDone;
using protocol::CommandKind;

// berthd and the gate, played by the test's thread.
class FakeHost final : public EngineHost {
  public:
    std::optional<Command> next_command() override {
        const std::lock_guard lock(mutex_);
        if (commands_.empty())
            return std::nullopt;
        Command command = commands_.front();
        commands_.pop_front();
        return command;
    }
    void complete(CommandDone done) override {
        const std::lock_guard lock(mutex_);
        done_[done.id] = std::move(done);
        changed_.notify_all();
    }
    bool paused() const override { return false; }
    void wait(Nanoseconds timeout) override {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, timeout, [&] { return notified_ || !commands_.empty(); });
        notified_ = false;
    }
    void notify() override {
        const std::lock_guard lock(mutex_);
        notified_ = true;
        changed_.notify_all();
    }
    bool must_yield() const override {
        const std::lock_guard lock(mutex_);
        return closed_ || !commands_.empty();
    }
    bool yield_here() override {
        std::unique_lock lock(mutex_);
        ++yields;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !closed_ || !commands_.empty(); });
        return commands_.empty();
    }
    void raise_gate() override { ++raised; }
    void lower_gate() override { --raised; }
    uint64_t gate_pauses() const override {
        const std::lock_guard lock(mutex_);
        return static_cast<uint64_t>(yields);
    }
    void report(const Load& load) override {
        const std::lock_guard lock(mutex_);
        load_ = load;
        changed_.notify_all();
    }
    void report_batch(uint64_t, uint64_t) override {}

    CommandDone order(CommandKind kind, uint64_t grant_bytes = 0, const std::string& kv = "Save") {
        std::unique_lock lock(mutex_);
        Command command;
        command.id = ++next_id_;
        command.kind = kind;
        command.grant_bytes = grant_bytes;
        command.kv = kv;
        commands_.push_back(command);
        changed_.notify_all();
        EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                      [&] { return done_.contains(command.id); }));
        return done_[command.id];
    }
    void close_gate(bool closed) {
        const std::lock_guard lock(mutex_);
        closed_ = closed;
        changed_.notify_all();
    }
    bool await_tokens(uint64_t tokens) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(60),
                                 [&] { return load_.tokens >= tokens; });
    }
    bool await_yield(int count) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return yields >= count; });
    }
    uint64_t tokens() {
        const std::lock_guard lock(mutex_);
        return load_.tokens;
    }

    int yields = 0;
    std::atomic<int> raised{0};

  private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Command> commands_;
    std::map<uint64_t, CommandDone> done_;
    Load load_;
    uint64_t next_id_ = 0;
    bool closed_ = false;
    bool notified_ = false;
};

constexpr uint32_t kBlocks = 48;
constexpr uint32_t kTokens = 40;

// An engine with all its parts; run() on a thread of its own.
class RunningEngine {
  public:
    explicit RunningEngine(bool drain = true) {
        ::setenv("BERTH_GRANT_STEP", "4096",
                 1); // small steps, so that a part of a tiny grant is some
        device_ = open_device("host-0").value();
        const ModelConfig config = tiny_config();
        weights_ = random_weights(config, at::kFloat);
        const KvLayout layout = kv_layout(config, at::kFloat, kTestBlockTokens);
        arena_ = device_->create_grant(round(kBlocks * layout.block_bytes())).value();
        RunnerOptions options;
        options.batch_invariant = true;
        options.decode_rows = 8;
        options.chunk_rows = 32;
        runner_ = std::make_unique<ModelRunner>(
            config, weights_,
            KvCache(layout, arena_->data(), arena_->bytes_max(), at::kFloat, at::kCPU), options);
        scheduler_ = std::make_unique<Scheduler>(SchedulerLimits{8, 32, kTestBlockTokens, true},
                                                 std::vector<int32_t>());
        memory_ = std::make_unique<KvMemory>(
            KvMemory::Parts{*device_, *arena_, *runner_, *scheduler_, 0});
        grant = arena_->bytes_max();
        EXPECT_TRUE(memory_->start(grant));
        EngineSettings settings;
        settings.model_name = "tiny";
        settings.vocab = config.vocab;
        settings.max_context = 256;
        settings.max_batch = 8;
        settings.capacity_blocks = memory_->blocks_within(grant);
        settings.drain_on_stop = drain;
        engine_ = std::make_unique<Engine>(settings,
                                           Engine::Parts{host, *scheduler_, *runner_, *memory_});
        thread_ = std::thread([this] { ended = engine_->run(); });
    }
    RunningEngine(const RunningEngine&) = delete;
    RunningEngine& operator=(const RunningEngine&) = delete;
    ~RunningEngine() { stop(); }
    void stop() {
        if (!thread_.joinable())
            return;
        host.close_gate(false);
        engine_->request_stop(std::chrono::seconds(0));
        thread_.join();
    }
    void join() { thread_.join(); }

    void submit(int count) {
        for (int i = 0; i < count; ++i) {
            GenerationRequest request;
            request.id = "r" + std::to_string(i);
            for (int t = 0; t < 20 + i * 9; ++t)
                request.prompt.push_back((t * 31 + i * 7) % 331);
            request.max_new_tokens = kTokens;
            request.temperature = i % 2 == 0 ? 0.0F : 0.8F;
            request.seed = static_cast<uint64_t>(i);
            const Status accepted = engine_->submit(request, [this](const TokenEvent& event) {
                const std::lock_guard lock(mutex);
                if (event.token >= 0)
                    answers[event.id].push_back(event.token);
                if (event.finished)
                    last[event.id] = event;
            });
            EXPECT_TRUE(accepted) << accepted.error().message;
        }
    }
    std::map<std::string, std::vector<int32_t>> finish(int count) {
        EXPECT_TRUE(host.await_tokens(static_cast<uint64_t>(count) * kTokens));
        stop();
        return answers;
    }
    uint64_t round(uint64_t bytes) {
        const uint64_t step = device_->capabilities().grant_step_bytes;
        return (bytes + step - 1) / step * step;
    }
    Engine& engine() { return *engine_; }
    // Breaks the device, so to say: the weights are no longer what they were.
    void spoil_weights() { weights_.layers[1].up.weight.mul_(2); }
    void mend_weights() { weights_.layers[1].up.weight.div_(2); }

    FakeHost host;
    uint64_t grant = 0;
    Status ended;
    std::mutex mutex;
    std::map<std::string, std::vector<int32_t>> answers;
    std::map<std::string, TokenEvent> last;

  private:
    std::unique_ptr<Device> device_;
    DecoderWeights weights_;
    std::unique_ptr<GrantArena> arena_;
    std::unique_ptr<ModelRunner> runner_;
    std::unique_ptr<Scheduler> scheduler_;
    std::unique_ptr<KvMemory> memory_;
    std::unique_ptr<Engine> engine_;
    std::thread thread_;
};

std::map<std::string, std::vector<int32_t>> undisturbed() {
    static const auto answers = [] {
        RunningEngine engine;
        engine.submit(4);
        return engine.finish(4);
    }();
    return answers;
}

class OffloadModes : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kv, OffloadModes, testing::Values("Save", "Drop", "Auto"),
                         [](const auto& info) { return info.param; });

TEST_P(OffloadModes, AnswersAreTheSameThroughOffloadsAndRestores) {
    RunningEngine engine;
    engine.submit(4);
    for (uint64_t round = 1; round <= 6; ++round) {
        ASSERT_TRUE(engine.host.await_tokens(round * 16));
        const CommandDone off = engine.host.order(CommandKind::kOffload, 0, GetParam());
        ASSERT_FALSE(off.error) << off.error->message;
        EXPECT_EQ(off.grant_bytes, 0U);
        EXPECT_EQ(off.host_bytes > 0, GetParam() != "Drop");
        EXPECT_EQ(engine.engine().stats().held, "Offloaded");
        EXPECT_FALSE(engine.engine().stats().ready);
        const uint64_t before = engine.host.tokens();
        EXPECT_FALSE(engine.host.order(CommandKind::kOffload, 0, GetParam()).error);
        EXPECT_EQ(engine.host.tokens(), before) << "it generates while offloaded";
        const CommandDone back = engine.host.order(CommandKind::kRestore, engine.grant);
        ASSERT_FALSE(back.error) << back.error->message;
        EXPECT_EQ(back.grant_bytes, engine.grant);
        EXPECT_EQ(back.host_bytes, 0U);
    }
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, ASmallerGrantRecomputesWhatDoesNotFit) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(60));
    ASSERT_FALSE(engine.host.order(CommandKind::kOffload).error);
    const CommandDone back = engine.host.order(CommandKind::kRestore, engine.grant / 4);
    ASSERT_FALSE(back.error) << back.error->message;
    EXPECT_LE(back.grant_bytes, engine.grant / 4);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, ARestoreIntoAGrantWithoutRoomIsRefusedAndLosesNothing) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(30));
    ASSERT_FALSE(engine.host.order(CommandKind::kOffload).error);
    const CommandDone refused = engine.host.order(CommandKind::kRestore, 4096);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->reason, "GrantTooSmall");
    EXPECT_EQ(refused.grant_bytes, 0U);
    EXPECT_GT(refused.host_bytes, 0U);
    ASSERT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant).error);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, ARestoreWhoseCanaryDiffersStaysOffloadedAndLosesNothing) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(30));
    ASSERT_FALSE(engine.host.order(CommandKind::kOffload).error);
    engine.spoil_weights();
    const CommandDone refused = engine.host.order(CommandKind::kRestore, engine.grant);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->reason, "CanaryMismatch");
    EXPECT_EQ(refused.grant_bytes, 0U);
    EXPECT_EQ(engine.engine().stats().held, "Offloaded");
    engine.mend_weights();
    ASSERT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant).error);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, AClosedGateStopsItBetweenLayersAndChangesNothing) {
    RunningEngine engine;
    engine.submit(4);
    for (int round = 1; round <= 5; ++round) {
        ASSERT_TRUE(engine.host.await_tokens(static_cast<uint64_t>(round) * 12));
        const int yields = engine.host.yields;
        engine.host.close_gate(true);
        ASSERT_TRUE(engine.host.await_yield(yields + 1));
        const uint64_t before = engine.host.tokens();
        std::this_thread::yield();
        EXPECT_EQ(engine.host.tokens(), before);
        engine.host.close_gate(false);
    }
    EXPECT_EQ(engine.finish(4), undisturbed());
    EXPECT_GE(engine.engine().stats().gate_pauses, 5U);
}

TEST(Engine, ACommandReachesItWhileTheGateIsClosed) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(10));
    engine.host.close_gate(true);
    ASSERT_TRUE(engine.host.await_yield(1));
    EXPECT_FALSE(engine.host.order(CommandKind::kOffload).error);
    EXPECT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant).error);
    engine.host.close_gate(false);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, StopEndsRequestsAsCancelledNotAsAnswered) {
    RunningEngine engine(/*drain=*/false);
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(10));
    EXPECT_FALSE(engine.host.order(CommandKind::kStop).error);
    engine.join();
    EXPECT_TRUE(engine.ended);
    ASSERT_EQ(engine.last.size(), 4U);
    for (const auto& [id, event] : engine.last) {
        EXPECT_EQ(event.finish_reason, FinishReason::kCancelled);
        EXPECT_EQ(event.error->code, ErrorCode::kUnavailable);
    }
    GenerationRequest late;
    late.prompt = {1};
    EXPECT_EQ(engine.engine().submit(late, {}).error().code, ErrorCode::kUnavailable);
}

TEST(Engine, RefusesRequestsThatCannotBeServed) {
    RunningEngine engine;
    const auto reason = [&](auto change) {
        GenerationRequest request;
        request.prompt = {1, 2, 3};
        change(request);
        const Status status = engine.engine().submit(request, [](const TokenEvent&) {});
        return status ? std::string("accepted") : status.error().reason;
    };
    EXPECT_EQ(reason([](auto&) {}), "accepted");
    EXPECT_EQ(reason([](auto& r) { r.prompt.clear(); }), "EmptyPrompt");
    EXPECT_EQ(reason([](auto& r) { r.prompt[1] = 331; }), "BadToken");
    EXPECT_EQ(reason([](auto& r) { r.prompt[1] = -1; }), "BadToken");
    EXPECT_EQ(reason([](auto& r) { r.max_new_tokens = 254; }), "ContextTooLong");
    EXPECT_EQ(reason([](auto& r) { r.max_new_tokens = 0; }), "BadMaxTokens");
    EXPECT_EQ(reason([](auto& r) { r.temperature = -0.5F; }), "BadTemperature");
    EXPECT_EQ(reason([](auto& r) { r.top_p = 0; }), "BadTopP");
    EXPECT_EQ(reason([](auto& r) { r.top_k = -1; }), "BadTopK");
}

} // namespace
} // namespace berth::engine
