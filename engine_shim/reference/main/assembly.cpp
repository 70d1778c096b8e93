// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/assembly.h"

#include "base/hash.h"
#include "cache/memory/host_device.h"
#include "engine_shim/reference/main/fast_start.h"
#include "engine_shim/reference/main/gate_wait.h"
#include "engine_shim/reference/main/model_facts.h"
#include "engine_shim/reference/main/torch_start.h"
#include "engine_shim/reference/main/torch_weights.h"
#include "engine_shim/reference/main/trial.h"
#include "engine_shim/reference/model/rope.h"
#include "engine_shim/reference/model/runner.h"
#include "engine_shim/reference/model/torch_device.h"
#include "engine_shim/reference/ranks/lead_model.h"
#include "engine_shim/reference/ranks/own_work.h"
#include "engine_shim/reference/ranks/process_group.h"
#include "engine_shim/torch/tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>

namespace berth::engine {

namespace {

// Work space of a GPU engine within its grant: activations, logits, the library's scratch.
constexpr uint64_t kWorkspaceMin = uint64_t{256} << 20;
constexpr uint64_t kWorkspaceMax = uint64_t{2} << 30;
constexpr uint32_t kCanaryTokens = 16;

class Stopwatch {
  public:
    double milliseconds() {
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::duration<double, std::milli> took = now - begin_;
        begin_ = now;
        return took.count();
    }

  private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

uint64_t grant_max(const Options& options, const Client& client) {
    const uint64_t granted = client.welcome().grant_bytes_max;
    return granted > 0 ? granted : options.kv_memory;
}

// What is backed at the start.
uint64_t grant_now(const Options& options, const Client& client) {
    const protocol::Welcome& welcome = client.welcome();
    return welcome.grant_bytes_max > 0 ? welcome.grant_bytes : grant_max(options, client);
}

uint64_t workspace_bytes(const Device& device, uint64_t grant_bytes) {
    if (device.capabilities().kind == DeviceKind::kHost)
        return 0;
    return std::clamp(grant_bytes / 8, kWorkspaceMin, kWorkspaceMax);
}

bool may_be_gated(const Client& client) {
    return client.mode() != AttachMode::kOff && !client.welcome().raises_gate;
}

// On a GPU torch starts on a thread of its own. The device is not used there.
Result<std::future<Status>> start_torch(const Options& options, Client& client) {
    Device& device = client.device();
    if (device.capabilities().kind != DeviceKind::kCuda)
        return std::async(std::launch::deferred, [] { return Status(); });
    BERTH_ASSIGN(const DeviceMemory memory, device.memory());
    const uint64_t workspace = workspace_bytes(device, grant_max(options, client));
    return std::async(std::launch::async, start_torch_cuda, workspace, memory.total_bytes);
}

} // namespace

struct Assembly::State {
    WeightSet weights; // first: tensors are views of it
    ModelConfig config;
    std::unique_ptr<GrantArena> arena;
    Crew* crew = nullptr; // null: no other ranks
    std::unique_ptr<RankGroup> group;
    std::unique_ptr<ModelRunner> runner;
    std::unique_ptr<LeadModel> lead;        // rank 0 of several
    std::unique_ptr<OwnWork> work;          // the others
    std::unique_ptr<fast::FastRunner> fast; // null: the runner computes steps too
    std::unique_ptr<Scheduler> scheduler;
    std::unique_ptr<KvMemory> memory;
    EngineSettings settings;
    SchedulerLimits limits; // of trials: one sequence
    FastBeginning fast_begun;
    std::future<Status> torch; // still starting while valid
    PhaseCallback phase;
    std::optional<GateWait> gate;
    std::optional<Rehearsal> rehearsal; // where first uses cost something
    Stopwatch watch;
    // A part of the phase "tensors", the largest of a start.
    void mark(const char* part) { phase(fmt::format("tensors.{}", part), watch.milliseconds()); }

    Status load(const Options& options, Client& client);
    Status await_torch();
    Status back_grant(const Options& options, Client& client);
    Status make_memory(const Options& options, Client& client, DecoderWeights decoder);
    // What steps are computed in, in bytes of the arena's start.
    Result<uint64_t> make_models(const Options& options, Client& client, DecoderWeights decoder);
    Status make_settings(const Options& options, Client& client, uint64_t largest);
    StepModel& model() {
        if (lead)
            return *lead;
        return fast ? static_cast<StepModel&>(*fast) : static_cast<StepModel&>(*runner);
    }
    Status connect(Client& client);
    Status share(Client& client, uint64_t workspace, uint64_t host_bytes_max);
    Status warm_up(const Options& options, Client& client);
    LayerHook gate_hook(const StepModel& of); // `of` computes them
    Result<std::vector<int32_t>> generate(StepModel& by, std::vector<int32_t> prompt,
                                          uint32_t count);
};

Assembly::Assembly() : state_(std::make_unique<State>()) {}
Assembly::~Assembly() = default;
const EngineSettings& Assembly::settings() const {
    return state_->settings;
}
const WeightSet& Assembly::weights() const {
    return state_->weights;
}

Engine::Parts Assembly::parts(EngineHost& host) {
    State& of = *state_;
    return {host, *of.scheduler, of.model(), *of.memory, of.rehearsal ? &*of.rehearsal : nullptr};
}

Status Assembly::State::back_grant(const Options& options, Client& client) {
    const uint64_t largest = grant_max(options, client);
    const uint64_t workspace = workspace_bytes(client.device(), largest);
    BERTH_ASSIGN(arena, client.create_grant(largest > workspace ? largest - workspace : 0));
    return arena->resize(backed_bytes(*arena, grant_now(options, client), workspace));
}

// The runner, which moves blocks and computes where there is no fast path, is there in any case.
Result<uint64_t> Assembly::State::make_models(const Options& options, Client& client,
                                              DecoderWeights decoder) {
    const at::ScalarType dtype = decoder.embedding.scalar_type();
    const at::Device device = decoder.embedding.device();
    const KvLayout layout = kv_layout(config, dtype, options.block_tokens);
    const uint64_t tokens = arena->bytes_max() / layout.block_bytes() * options.block_tokens;
    const uint32_t wanted = options.max_context != 0 ? options.max_context : config.max_positions;
    BERTH_ASSIGN(ComputePlan plan,
                 plan_compute(options, config, decoder, std::min<uint64_t>(wanted, tokens)));
    if (plan.scratch_bytes > arena->bytes_max())
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("a step of {} sequences and {} prompt tokens is computed in {} of "
                                "memory, the grant has {}: lower --max-batch or --prefill-chunk",
                                options.max_batch, options.prefill_chunk,
                                format_bytes(plan.scratch_bytes), format_bytes(arena->bytes_max())),
                    "GrantTooSmall");
    const auto cache_behind = [&](uint64_t scratch) {
        return KvCache(layout, arena->data() + scratch, arena->bytes_max() - scratch, dtype,
                       device);
    };
    if (plan.is_fast()) {
        auto started =
            start_fast(plan, config, decoder, cache_behind(plan.scratch_bytes), arena->data(),
                       {may_be_gated(client), client.gate_word()}, std::move(fast_begun));
        if (started)
            fast = std::move(*started);
        else if (options.compute == "fast" || started.error().code != ErrorCode::kUnsupported)
            return fail(started.error());
        else
            plan = {started.error().message, {}, {}, {}, 0};
    }
    fast_begun = {};
    if (!plan.is_fast())
        BERTH_TRY(await_torch());
    settings.compute = plan.is_fast() ? "fast" : fmt::format("plain ({})", plan.why_plain);
    const KvCache cache = cache_behind(plan.scratch_bytes);
    RunnerOptions runner_options;
    runner_options.batch_invariant = options.batch_invariant;
    runner_options.decode_rows = options.max_batch;
    runner_options.chunk_rows = options.prefill_chunk;
    RunnerRanks ranks;
    if (crew != nullptr)
        ranks = {group.get(), crew->lead()};
    runner =
        std::make_unique<ModelRunner>(config, std::move(decoder), cache, runner_options, ranks);
    return plan.scratch_bytes;
}

Status Assembly::State::make_memory(const Options& options, Client& client,
                                    DecoderWeights decoder) {
    Device& device = client.device();
    const uint64_t largest = grant_max(options, client);
    const uint64_t workspace = workspace_bytes(device, largest);
    BERTH_ASSIGN(const uint64_t scratch, make_models(options, client, std::move(decoder)));
    mark("model");
    uint64_t host_bytes_max = options.host_kv_memory;
    if (host_bytes_max == 0) {
        BERTH_ASSIGN(const HostMemory host, host_memory());
        host_bytes_max = host.total_bytes / 4;
    }
    if (crew != nullptr)
        BERTH_TRY(share(client, workspace, host_bytes_max));
    if (work)
        return {};
    // Where rotary frequencies follow a prompt's whole length its beginning is not another's.
    const bool keep_prefixes = options.prefix_cache && !rope_depends_on_length(config);
    scheduler = std::make_unique<Scheduler>(
        SchedulerLimits{options.max_batch, options.prefill_chunk, options.block_tokens,
                        options.batch_invariant, keep_prefixes},
        config.eos_tokens);
    KvMemory::Parts parts{device, *arena, *runner, *scheduler, workspace, host_bytes_max, scratch};
    parts.canary = [this](uint32_t block) {
        gate->canary_begins();
        return fast ? fast->model().canary(block, gate_hook(*fast))
                    : runner->canary(block, gate_hook(*runner));
    };
    memory = std::make_unique<KvMemory>(std::move(parts));
    client.set_grant_least(memory->least_grant());
    BERTH_TRY(memory->start(grant_now(options, client)));
    client.counters().grant_bytes = memory->grant_bytes();
    mark("memory");
    return make_settings(options, client, largest);
}

Status Assembly::State::make_settings(const Options& options, Client& client, uint64_t largest) {
    settings.model_name = served_name(options, client, weights);
    settings.vocab = config.vocab;
    settings.max_batch = options.max_batch;
    settings.eos_tokens = config.eos_tokens;
    settings.weights_private = !weights.private_reason().empty();
    settings.capacity_blocks = memory->blocks_within(largest);
    settings.block_bytes = runner->cache().layout().block_bytes() * options.ranks;
    const uint64_t tokens = settings.capacity_blocks * options.block_tokens;
    const uint32_t wanted = options.max_context != 0 ? options.max_context : config.max_positions;
    if (options.max_context > tokens)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("--max-context {} but the largest grant of {} holds {} tokens",
                                options.max_context, format_bytes(largest), tokens),
                    "KvTooSmall");
    settings.max_context = static_cast<uint32_t>(std::min<uint64_t>(wanted, tokens));
    settings.drain_on_stop = options.has_server();
    const bool on_gpu = client.device().capabilities().kind == DeviceKind::kCuda;
    settings.fence_layers = on_gpu && may_be_gated(client) ? 2 : 0;
    return {};
}

Status Assembly::State::load(const Options& options, Client& client) {
    const std::string config_text(weights.manifest().config_json());
    BERTH_ASSIGN(config, parse_model_config(config_text, weights.model_path() + "/config.json"));
    BERTH_TRY(read_eos(weights.model_path(), config));
    BERTH_ASSIGN(config, config_of_rank(config, {options.rank, options.ranks}));
    BERTH_ASSIGN(torch, start_torch(options, client));
    fast_begun = begin_fast(options, client.device().capabilities().kind == DeviceKind::kCuda);
    BERTH_TRY(back_grant(options, client));
    mark("grant");
    if (!fast_begun.valid())
        BERTH_TRY(await_torch());
    if (crew != nullptr)
        BERTH_TRY(connect(client));
    BERTH_ASSIGN(const WeightSource source, weight_source(weights, client.device()));
    BERTH_ASSIGN(DecoderWeights decoder, resolve_weights(config, source));
    BERTH_TRY(check_dtype(options.dtype, decoder.embedding.scalar_type()));
    mark("weights");
    return make_memory(options, client, std::move(decoder));
}

// The fast path needs it for prompts alone: until then it starts beside everything.
Status Assembly::State::await_torch() {
    if (!torch.valid())
        return {};
    BERTH_TRY(torch.get());
    mark("torch");
    return {};
}

// All ranks wait for the slowest here.
Status Assembly::State::connect(Client& client) {
    BERTH_ASSIGN(const at::Device device, torch_device(client.device()));
    BERTH_ASSIGN(group, connect_ranks(crew->store(), {config.share.rank, config.share.ranks},
                                      device, crew->links().shares_device()));
    phase("connect ranks", watch.milliseconds());
    return {};
}

// The ranks that follow have all that rank 0 needs of them; from then on they do as it says.
Status Assembly::State::share(Client& client, uint64_t workspace, uint64_t host_bytes_max) {
    const uint64_t block_bytes = runner->cache().layout().block_bytes();
    settings.compute = fmt::format("plain ({} ranks)", config.share.ranks);
    if (crew->lead() != nullptr) {
        BERTH_TRY(crew->lead()->await_ready(arena->bytes(), block_bytes));
        arena = std::make_unique<SharedArena>(std::move(arena), *crew->lead());
        lead = std::make_unique<LeadModel>(*crew->lead(), *runner);
        mark("ranks");
        return {};
    }
    work = std::make_unique<OwnWork>(
        OwnWork::Parts{client.device(), *arena, *runner, workspace, host_bytes_max});
    client.counters().grant_bytes = work->grant_bytes();
    return {};
}

void Assembly::set_wish(std::function<bool()> wish) {
    if (state_->lead)
        state_->lead->set_wish(wish);
    if (state_->group)
        state_->group->set_wish(std::move(wish));
}

std::unique_ptr<Follower> Assembly::follower(EngineHost& host) {
    auto made =
        std::make_unique<Follower>(Follower::Parts{state_->crew->links(), host, *state_->work});
    made->say_ready(state_->arena->bytes(), state_->runner->cache().layout().block_bytes());
    return made;
}

// Between layers of a step that the loop does not make: whoever comes first is waited for here too.
LayerHook Assembly::State::gate_hook(const StepModel& of) {
    return [this, &of](uint32_t layer) {
        const uint32_t each = of.waits_for_device() ? 0 : settings.fence_layers;
        if (each > 0 && layer % each == 0)
            (void)memory->fence(); // the step's own end says what it says
        gate->here();
        return true;
    };
}

// One prefill chunk and one decode of each of two prompts, so that the libraries' first-use costs
// fall before Ready. What it answers is told, to be compared with another engine's.
Status Assembly::State::warm_up(const Options& options, Client& client) {
    BERTH_TRY(await_torch());
    limits = {1, options.prefill_chunk, options.block_tokens, options.batch_invariant};
    const uint64_t count = std::min<uint64_t>(options.block_tokens, settings.max_context / 2);
    std::vector<uint64_t> answers;
    for (const uint64_t step : {uint64_t{0}, uint64_t{7919}}) { // from one token to the next
        std::vector<int32_t> prompt;
        for (uint64_t n = 0; n < std::max<uint64_t>(count, 1); ++n)
            prompt.push_back(static_cast<int32_t>((1 + n * step) % config.vocab));
        BERTH_ASSIGN(const auto answer, generate(model(), std::move(prompt), 2));
        answers.insert(answers.end(), answer.begin(), answer.end());
    }
    client.set_canary_tokens(answers);
    if (client.device().capabilities().kind == DeviceKind::kCuda)
        rehearsal.emplace(
            Rehearsal::Parts{model(), *scheduler, limits, config.vocab, settings.max_context});
    return memory->verify();
}

// Greedy tokens after a prompt.
Result<std::vector<int32_t>> Assembly::State::generate(StepModel& by, std::vector<int32_t> prompt,
                                                       uint32_t count) {
    BERTH_ASSIGN(auto tokens,
                 try_alone(by, *scheduler, limits, std::move(prompt), count, gate_hook(by)));
    if (!tokens)
        return fail(ErrorCode::kResourceExhausted, "the grant is too small for a step",
                    "GrantTooSmall");
    return std::move(*tokens);
}

Result<std::string> Assembly::canary_digest() {
    const std::string input(state_->weights.canary().input);
    const uint32_t context = state_->settings.max_context;
    BERTH_ASSIGN(
        std::vector<int32_t> prompt,
        canary_prompt(input, state_->config.vocab, context - std::min(context, kCanaryTokens)));
    StepModel& by = state_->lead ? static_cast<StepModel&>(*state_->lead) : *state_->runner;
    BERTH_ASSIGN(const std::vector<int32_t> tokens,
                 state_->generate(by, std::move(prompt), kCanaryTokens));
    return sha256_hex(fmt::format("[{}]", fmt::join(tokens, ",")));
}

Result<std::unique_ptr<Assembly>> Assembly::make(const Options& options, Client& client,
                                                 WeightSet weights, const PhaseCallback& phase,
                                                 Crew* crew) {
    Stopwatch watch;
    std::unique_ptr<Assembly> assembly(new Assembly());
    assembly->state_->weights = std::move(weights);
    assembly->state_->phase = phase;
    assembly->state_->gate.emplace(client);
    assembly->state_->crew = crew;
    limit_threads(static_cast<int>(options.threads));
    BERTH_TRY(assembly->state_->load(options, client));
    phase("tensors", watch.milliseconds());
    if (assembly->state_->work)
        return assembly;
    BERTH_TRY(assembly->state_->warm_up(options, client));
    phase("warmup", watch.milliseconds());
    assembly->state_->gate->start_is_over(phase);
    return assembly;
}

} // namespace berth::engine
