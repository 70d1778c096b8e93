// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/main/engine.h"
#include "tests/engine/checkpoint_source.h"
#include "tests/engine/command_host.h"
#include "tests/memory/host_backed_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <thread>

// A real (tiny) decoder and grant on the host device, run by an engine's loop; the test plays
// berthd.
namespace berth::engine {

using protocol::Command;
using protocol::CommandDone;
using protocol::CommandKind;

// berthd and the gate, played by the test's thread.
class FakeHost final : public CommandHost {
  public:
    bool must_yield() const override {
        const std::lock_guard lock(mutex_);
        return closed_ || !commands_.empty();
    }
    bool yield_here() override {
        std::unique_lock lock(mutex_);
        ++yields;
        return sleep_here(lock);
    }
    void raise_gate() override { ++raised; }
    void lower_gate() override { --raised; }
    void note_progress(uint64_t later, Nanoseconds since_first) override {
        const std::lock_guard lock(mutex_);
        progress.emplace_back(later, since_first);
    }
    void between_steps(Nanoseconds step) override {
        const std::lock_guard lock(mutex_);
        steps_told += step.count() > 0 ? 1 : 0;
    }
    void step_begins() override { ++steps_begun; }
    void step_ends() override { ++steps_ended; }
    void serves_as(uint64_t generation) override { serving = generation; }
    void has_left_socket() override { serving = 0; }
    uint64_t gate_pauses() const override {
        const std::lock_guard lock(mutex_);
        return static_cast<uint64_t>(yields);
    }
    void report(const Load& load) override {
        const std::lock_guard lock(mutex_);
        load_ = load;
        if (closes_when_ && closes_when_(load)) {
            closes_when_ = nullptr;
            closed_ = true;
        }
        changed_.notify_all();
    }
    void report_batch(uint64_t, uint64_t) override {}
    void note_first_token(Nanoseconds) override {}
    void note_pace(Nanoseconds) override {}
    void note_awaited(Nanoseconds longest) override { awaited = longest.count(); }
    void note_answered(Nanoseconds, Nanoseconds) override {}

    CommandDone order(CommandKind kind, uint64_t grant_bytes = 0, const std::string& kv = "Save") {
        return order_with(kind, [&](Command& command) {
            command.grant_bytes = grant_bytes;
            command.kv = kv;
        });
    }
    CommandDone order_with(CommandKind kind, const std::function<void(Command&)>& fill) {
        std::unique_lock lock(mutex_);
        Command command;
        command.kind = kind;
        fill(command);
        const uint64_t id = push(std::move(command));
        EXPECT_TRUE(
            changed_.wait_for(lock, std::chrono::seconds(60), [&] { return done_.contains(id); }));
        return done_[id];
    }
    // Once, between two steps: the engine does not run on until this thread has had its turn.
    void close_gate_when(std::function<bool(const Load&)> wanted) {
        const std::lock_guard lock(mutex_);
        closes_when_ = std::move(wanted);
    }
    void close_gate_at(uint64_t tokens) {
        close_gate_when([tokens](const Load& load) { return load.tokens >= tokens; });
    }
    bool await_tokens(uint64_t tokens) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(60),
                                 [&] { return load_.tokens >= tokens; });
    }
    // As above, but only for a while: it may be that nothing can go on.
    void let_run(uint64_t tokens) {
        std::unique_lock lock(mutex_);
        const uint64_t goal = load_.tokens + tokens;
        changed_.wait_for(lock, std::chrono::milliseconds(30),
                          [&] { return load_.tokens >= goal; });
    }
    uint64_t reported_grant() {
        const std::lock_guard lock(mutex_);
        return load_.grant_bytes;
    }
    bool await_yield(int count) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return yields >= count; });
    }
    uint64_t tokens() {
        const std::lock_guard lock(mutex_);
        return load_.tokens;
    }
    bool await_load(const std::function<bool(const Load&)>& wanted) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return wanted(load_); });
    }

    int yields = 0;
    uint64_t steps_told = 0;
    std::vector<std::pair<uint64_t, Nanoseconds>> progress; // of answers, as they were told
    std::atomic<int> raised{0};
    std::atomic<uint64_t> steps_begun{0}, steps_ended{0}, serving{0};
    std::atomic<int64_t> awaited{0};

  private:
    Load load_;
    std::function<bool(const Load&)> closes_when_;
};

inline constexpr uint32_t kBlocks = 48;
inline constexpr uint32_t kTokens = 40;
inline constexpr uint32_t kTestContext = 256;

// The device under it: host memory that can be told to refuse, and a note of what was done, in
// order: c a copy to the host, f a fence, u an unmapping.
class TestDevice final : public testing::HostBackedDevice {
  public:
    Result<std::unique_ptr<GrantArena>> create_grant(uint64_t bytes_max) override {
        BERTH_ASSIGN(auto arena, host_->create_grant(bytes_max));
        return std::make_unique<Arena>(*this, std::move(arena));
    }
    Result<HostBuffer> create_host_buffer(uint64_t bytes) override {
        if (refuse_host_buffers)
            return fail(ErrorCode::kResourceExhausted, "told to refuse host memory");
        return host_->create_host_buffer(bytes);
    }
    Status copy_to_host(std::byte* to, const std::byte* from, uint64_t bytes) override {
        deeds += 'c';
        return host_->copy_to_host(to, from, bytes);
    }
    Status start_copy_to_device(int lane, std::byte* to, const std::byte* from,
                                uint64_t bytes) override {
        return host_->start_copy_to_device(lane, to, from, bytes);
    }
    Status wait_lane(int lane) override { return host_->wait_lane(lane); }
    Status synchronize() override {
        deeds += 'f';
        return {};
    }

    std::atomic<bool> refuse_growth{false};
    std::atomic<bool> refuse_unmapping{false};
    std::atomic<bool> refuse_host_buffers{false};
    std::string deeds; // read while the engine's thread is away

  private:
    class Arena final : public GrantArena {
      public:
        Arena(TestDevice& device, std::unique_ptr<GrantArena> arena)
            : device_(device), arena_(std::move(arena)) {}
        std::byte* data() const override { return arena_->data(); }
        uint64_t bytes() const override { return arena_->bytes(); }
        uint64_t bytes_max() const override { return arena_->bytes_max(); }
        uint64_t step_bytes() const override { return arena_->step_bytes(); }
        Status resize(uint64_t bytes) override {
            if (bytes > arena_->bytes() && device_.refuse_growth)
                return fail(ErrorCode::kResourceExhausted, "told to refuse growth");
            if (bytes < arena_->bytes() && device_.refuse_unmapping)
                return fail(ErrorCode::kInternal, "told to refuse unmapping");
            if (bytes < arena_->bytes())
                device_.deeds += 'u';
            return arena_->resize(bytes);
        }

      private:
        TestDevice& device_;
        std::unique_ptr<GrantArena> arena_;
    };
};

inline GenerationRequest test_request(int number, uint32_t tokens = kTokens) {
    GenerationRequest request;
    request.id = "r" + std::to_string(number);
    for (int t = 0; t < 20 + number * 9; ++t)
        request.prompt.push_back((t * 31 + number * 7) % 331);
    request.max_new_tokens = tokens;
    request.temperature = number % 2 == 0 ? 0.0F : 0.8F;
    request.seed = static_cast<uint64_t>(number);
    return request;
}

// What an engine is made of, with a grant of kBlocks blocks.
struct TestParts {
    explicit TestParts(uint64_t host_blocks_max = 4096) {
        // small steps, so that a part of a tiny grant is some
        ::setenv("BERTH_GRANT_STEP", "4096", 1);
        device = std::make_unique<TestDevice>();
        const ModelConfig config = tiny_config();
        weights = random_weights(config, at::kFloat);
        const KvLayout layout = kv_layout(config, at::kFloat, kTestBlockTokens);
        block_bytes = layout.block_bytes();
        arena = device->create_grant(round(kBlocks * block_bytes)).value();
        RunnerOptions options;
        options.batch_invariant = true;
        options.decode_rows = 8;
        options.chunk_rows = 32;
        runner = std::make_unique<ModelRunner>(
            config, weights,
            KvCache(layout, arena->data(), arena->bytes_max(), at::kFloat, at::kCPU), options);
        scheduler = std::make_unique<Scheduler>(SchedulerLimits{8, 32, kTestBlockTokens, true},
                                                std::vector<int32_t>());
        memory = std::make_unique<KvMemory>(KvMemory::Parts{*device, *arena, *runner, *scheduler, 0,
                                                            host_blocks_max * block_bytes});
        grant = arena->bytes_max();
        EXPECT_TRUE(memory->start(grant));
        rehearsal.emplace(Rehearsal::Parts{
            *runner, *scheduler, {1, 32, kTestBlockTokens, true}, config.vocab, kTestContext});
    }
    uint64_t round(uint64_t bytes) const {
        const uint64_t step = device->capabilities().grant_step_bytes;
        return (bytes + step - 1) / step * step;
    }

    std::unique_ptr<TestDevice> device;
    DecoderWeights weights;
    std::unique_ptr<GrantArena> arena;
    std::unique_ptr<ModelRunner> runner;
    std::unique_ptr<Scheduler> scheduler;
    std::unique_ptr<KvMemory> memory;
    std::optional<Rehearsal> rehearsal;
    uint64_t block_bytes = 0;
    uint64_t grant = 0;
};

// An engine with all its parts; run() on a thread of its own.
class RunningEngine {
  public:
    explicit RunningEngine(bool drain = true, uint64_t host_blocks_max = 4096)
        : RunningEngine(nullptr, drain, host_blocks_max) {}
    explicit RunningEngine(SocketSide* socket, bool drain = true, uint64_t host_blocks_max = 4096)
        : parts_(host_blocks_max), grant(parts_.grant) {
        EngineSettings settings;
        settings.model_name = "tiny";
        settings.vocab = tiny_config().vocab;
        settings.max_context = kTestContext;
        settings.max_batch = 8;
        settings.capacity_blocks = parts_.memory->blocks_within(grant);
        settings.block_bytes = parts_.block_bytes;
        settings.drain_on_stop = drain;
        engine_ = std::make_unique<Engine>(settings,
                                           Engine::Parts{host, *parts_.scheduler, *parts_.runner,
                                                         *parts_.memory, &*parts_.rehearsal});
        if (socket != nullptr)
            engine_->use(*socket);
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
        for (int i = 0; i < count; ++i)
            submit(test_request(i));
    }
    void submit(GenerationRequest request) {
        const Status accepted =
            engine_->submit(std::move(request), [this](const TokenEvent& event) {
                const std::lock_guard lock(mutex);
                EXPECT_FALSE(last.contains(event.id)) << event.id << " was answered twice";
                if (event.token >= 0)
                    answers[event.id].push_back(event.token);
                if (event.finished)
                    last[event.id] = event;
            });
        EXPECT_TRUE(accepted) << accepted.error().message;
    }
    std::map<std::string, std::vector<int32_t>> finish(int count) {
        EXPECT_TRUE(host.await_tokens(static_cast<uint64_t>(count) * kTokens));
        stop();
        return answers;
    }
    Engine& engine() { return *engine_; }
    TestDevice& device() { return *parts_.device; }
    uint64_t block_bytes() const { return parts_.block_bytes; }
    // Once its thread has ended.
    bool has_rehearsed() const { return parts_.rehearsal->is_over(); }
    // Breaks the device, so to say: the weights are no longer what they were.
    void spoil_weights() { parts_.weights.layers[1].up.weight.mul_(2); }
    void mend_weights() { parts_.weights.layers[1].up.weight.div_(2); }

  private:
    TestParts parts_;

  public:
    FakeHost host;
    const uint64_t grant;
    Status ended;
    std::mutex mutex;
    std::map<std::string, std::vector<int32_t>> answers;
    std::map<std::string, TokenEvent> last;

  private:
    std::unique_ptr<Engine> engine_;
    std::thread thread_;
};

// What that many requests give when nothing disturbs them.
inline std::map<std::string, std::vector<int32_t>> undisturbed(int count = 4) {
    static std::map<int, std::map<std::string, std::vector<int32_t>>> answers;
    if (!answers.contains(count)) {
        RunningEngine engine;
        engine.submit(count);
        answers[count] = engine.finish(count);
    }
    return answers[count];
}

} // namespace berth::engine
