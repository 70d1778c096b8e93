// SPDX-License-Identifier: Apache-2.0
// berth-engine: attaches to a weight set, takes a grant, and answers requests from HTTP or from a
// batch file until it is told to stop or the batch is done.
#include "base/descriptors.h"
#include "base/log.h"
#include "base/process.h"
#include "cache/weights/fingerprint.h"
#include "engine_shim/client/client.h"
#include "engine_shim/reference/main/assembly.h"
#include "engine_shim/reference/main/client_host.h"
#include "engine_shim/reference/main/frontend.h"
#include "engine_shim/reference/main/options.h"
#include "engine_shim/reference/main/several_ranks.h"
#include "engine_shim/reference/main/torch_start.h"
#include "engine_shim/reference/model/thread_wait.h"
#include "engine_shim/reference/ranks/ranked_host.h"
#include "engine_shim/zygote/zygote.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <optional>
#include <thread>

#include <time.h>
#include <unistd.h>

namespace {

using namespace berth;
using namespace berth::engine;
using protocol::EngineState;

constexpr int kExitFailed = 1;
constexpr std::chrono::seconds kEndGrace{5}; // where another rank was asked to end

// Since this process was started, by the kernel's clock.
double process_age_ms() {
    const auto self = process_id(::getpid());
    struct timespec now = {};
    if (!self || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0)
        return 0;
    const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    const double up_ms =
        static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
    return up_ms - static_cast<double>(self->start_ticks) / ticks * 1e3;
}

// Phases go to berthd for `berth describe` and to the log.
class Phases {
  public:
    void begin(Client& client) { client_ = &client; }
    void note(const std::string& name, double milliseconds) {
        log::info("phase={} ms={:.1f}", name, milliseconds);
        if (client_ != nullptr)
            client_->set_phase(name, milliseconds);
    }
    // The time since the last mark is this phase's.
    void mark(const std::string& name) {
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::duration<double, std::milli> took = now - last_;
        last_ = now;
        note(name, took.count());
    }
    void restart() { last_ = std::chrono::steady_clock::now(); }

  private:
    Client* client_ = nullptr;
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

Result<ClientOptions> client_options(const Options& options) {
    BERTH_ASSIGN(ClientOptions made, ClientOptions::from_environment());
    if (options.mode == "off")
        made.mode = AttachMode::kOff;
    else if (options.mode == "daemon")
        made.mode = AttachMode::kDaemon;
    else if (options.mode == "client")
        made.mode = AttachMode::kClient;
    if (!options.fallback.empty())
        made.fallback = options.fallback == "disk" ? Fallback::kDisk : Fallback::kFail;
    if (!options.model.empty())
        made.model_path = options.model;
    if (!options.device.empty())
        made.device = options.device;
    made.program = "berth-engine 0.1.0";
    if (names_gpu(made.device) && made.device != "cuda")
        ::setenv("CUDA_VISIBLE_DEVICES", made.device.c_str(), /*overwrite=*/0);
    return made;
}

Result<WeightSet> attach(Client& client, const ClientOptions& connection, const Options& options) {
    AttachRequest request;
    request.weight_set = options.weight_set;
    request.rank = options.rank;
    request.ranks = options.ranks;
    if (connection.instance.empty() && options.weight_set.empty())
        request.path = connection.model_path;
    std::string phase;
    return client.attach(request, [&phase](const protocol::Progress& progress) {
        if (progress.phase != phase)
            log::info("attach: {} ({} of {})", progress.phase, format_bytes(progress.bytes_done),
                      format_bytes(progress.bytes_total));
        phase = progress.phase;
    });
}

Result<std::optional<serve::Inheritance>> inheritance(const Options& options) {
    if (!options.inherits_socket)
        return std::nullopt;
    // It is the kernel's limit, too, of how many may lie parked; without it fewer are kept.
    (void)raise_descriptor_limit();
    BERTH_ASSIGN(auto descriptors, take_inherited_descriptors());
    return serve::inheritance_of(std::move(descriptors));
}

// Ready; and before that it serves, or says that it stands by.
Status get_ready(Client& client, Frontend& frontend, bool has_socket) {
    const uint64_t generation = client.welcome().generation;
    client.set_identity(frontend.identity());
    if (has_socket && generation == 0)
        client.stand_by();
    if (has_socket && generation > 0) {
        frontend.start();
        BERTH_TRY(frontend.serve(generation));
        client.serves_as(generation);
    }
    client.set_state(EngineState::kReady, frontend.endpoint());
    frontend.start();
    return {};
}

// The engine's life from attach to its end.
Status live(const Options& options, const ClientOptions& connection, Client& client, Phases& phases,
            Crew* crew, std::optional<serve::Inheritance> inherited) {
    phases.restart();
    (void)client.device(); // attach would open it, and says why that fails
    phases.mark("context");
    BERTH_ASSIGN(WeightSet weights, attach(client, connection, options));
    phases.mark("attach");
    std::future<Result<std::shared_ptr<Frontend::Prepared>>> preparing;
    if (options.rank == 0) // the others may be given the same command
        preparing = std::async(
            std::launch::async, Frontend::prepare, options, weights.model_path(),
            hash_of_model(weights.manifest().fingerprint_json()).value_or(weights.fingerprint()));
    BERTH_ASSIGN(const auto assembly,
                 Assembly::make(
                     options, client, std::move(weights),
                     [&](const std::string& name, double ms) { phases.note(name, ms); }, crew));
    ClientHost own_host(client);
    if (crew != nullptr && crew->lead() == nullptr) {
        phases.note("ready", process_age_ms());
        return follow_rank0(*assembly, own_host, client);
    }
    assembly->set_wish([&own_host] { return own_host.must_yield(); });
    if (assembly->weights().canary()) {
        BERTH_ASSIGN(const std::string digest, assembly->canary_digest());
        BERTH_TRY(client.report_canary(assembly->weights(), digest));
    }
    phases.restart();
    std::optional<RankedHost> ranked;
    if (crew != nullptr)
        ranked.emplace(own_host, *crew->lead());
    EngineHost& host = ranked ? static_cast<EngineHost&>(*ranked) : own_host;
    Engine engine(assembly->settings(), assembly->parts(host));
    std::optional<Lead::Calls> calls;
    if (crew != nullptr) {
        assembly->set_wish([&host] { return host.must_yield(); });
        crew->lead()->loop_begins();
        calls.emplace(
            *crew->lead(), [&host] { host.notify(); },
            [&engine] { engine.request_stop(kEndGrace); });
    }
    BERTH_ASSIGN(auto prepared, preparing.get());
    const bool has_socket = inherited.has_value();
    BERTH_ASSIGN(const auto frontend,
                 Frontend::make(options, std::move(prepared), engine, std::move(inherited)));
    phases.mark("frontend");
    phases.note("ready", process_age_ms());
    BERTH_TRY(get_ready(client, *frontend, has_socket));
    log::info("ready model={} endpoint={} context={} blocks={} compute={}", engine.model_name(),
              frontend->endpoint(), engine.max_context(), engine.stats().blocks_total,
              assembly->settings().compute);
    const Status ran = engine.run();
    frontend->stop();
    BERTH_TRY(ran);
    const auto batch = frontend->batch_end();
    if (batch && !batch->error.empty())
        return fail(ErrorCode::kIo, batch->error, "BatchFailed");
    if (batch && batch->complete)
        client.set_state(EngineState::kSucceeded, frontend->endpoint());
    return {};
}

Status run(const Options& options) {
    Phases phases;
    const double process_ms = process_age_ms();
    BERTH_ASSIGN(std::optional<serve::Inheritance> inherited, inheritance(options));
    BERTH_ASSIGN(const ClientOptions connection, client_options(options));
    prepare_environment(options);
    const std::jthread opening = open_torch_early(connection.device);
    BERTH_ASSIGN(const auto client, Client::connect(connection));
    if (inherited) {
        BERTH_ASSIGN(std::vector<UniqueFd> copies, inherited->copies());
        client->hold_socket(std::move(copies));
    }
    phases.begin(*client);
    phases.note("process", process_ms);
    phases.mark("connect");
    BERTH_ASSIGN(const std::unique_ptr<Crew> crew, meet_ranks(options, connection.device, *client));
    if (crew)
        phases.mark("rendezvous");
    Status lived = live(options, connection, *client, phases, crew.get(), std::move(inherited));
    if (!lived)
        client->set_state(EngineState::kFailed, {},
                          lived.error().reason.empty() ? "EngineFailed" : lived.error().reason,
                          lived.error().message);
    if (crew && !lived)
        crew->links().say_failed(lived.error().message);
    else if (crew)
        crew->end();
    return lived;
}

int run_engine(int argc, char** argv) {
    int exit_code = 0;
    const auto options = parse_options(argc, argv, exit_code);
    if (!options)
        return exit_code;
    if (!names_gpu(options->device))
        restart_with_sleeping_threads(argv);
    if (const Status started = log::start("berth-engine"); !started) {
        fmt::print(stderr, "berth-engine: {}\n", started.error().message);
        return kExitFailed;
    }
    if (const Status ended = run(*options); !ended) {
        log::error("reason={} {}", ended.error().reason, ended.error().message);
        return kExitFailed;
    }
    return 0;
}

} // namespace

// Executed as a zygote it loads its libraries and waits; whoever is forked from it goes on here.
int main(int argc, char** argv) {
    if (!zygote::is_asked_for(argc, argv))
        return run_engine(argc, argv);
    const auto born = zygote::serve(
        argv, [](bool with_gpu) { return with_gpu ? preload_torch_cuda() : Status(); });
    return born ? run_engine(born->argc, born->argv) : 0;
}
