// SPDX-License-Identifier: Apache-2.0
// The actor's part that starts engines: by a fork of the zygote where that is the same as by exec,
// else by exec.
#include "scheduler/act/node_actor.h"

#include "base/hash.h"
#include "base/log.h"
#include "scheduler/act/rank_name.h"

#include <fcntl.h>
#include <utility>

namespace berth {

namespace {

const std::string& device_of(const SpawnOptions& options) {
    static const std::string none;
    const auto found = options.environment.find("BERTH_DEVICE");
    return found == options.environment.end() ? none : found->second;
}

Error withdrawn() {
    return {ErrorCode::kUnavailable,
            "it was preempted, deleted or given up before its process had begun", "StartWithdrawn",
            0};
}

} // namespace

void NodeActor::expect_engines(const policies::Documents& documents) {
    for (const policies::InstanceSpec& instance : documents.instances)
        if (!instance.engine.command.empty() &&
            zygote_.is_program(program_of(instance.engine.command.front(), context_.paths)))
            return zygote_.expect();
}

// Else none is made: it was preempted, deleted or given up since its start was decided. Where a
// later start has taken its place, or nobody counts with one any more, there is no word to say.
bool NodeActor::is_wanted(const node::InstanceName& instance, uint64_t number,
                          const node::InstanceName& rank_name) {
    if (is_due(context_.state(), instance, number))
        return true;
    log::info("start {} of instance={} is not wanted any more", number, rank_name.value);
    if (is_expected(context_.state(), instance, number))
        crews_.hear(rank_name, node::ProcessStartFailed{rank_name, withdrawn()});
    return false;
}

// It waits for something, and is to be ended.
void NodeActor::withdraw(const node::InstanceName& instance) {
    const auto start = starts_.withdraw(instance);
    if (start && is_expected(context_.state(), instance, start->number))
        context_.post(node::ProcessStartFailed{instance, withdrawn()});
}

void NodeActor::start_process(const node::StartProcess& start, const Status& recorded) {
    auto failed = [&](Error error) {
        context_.post(node::ProcessStartFailed{start.instance, std::move(error)});
    };
    // Without its record an engine could not be found again after a crash: none is started.
    if (!recorded)
        return failed(recorded.error());
    const std::vector<std::string>* announced = starts_.tokens_of(start);
    if (!is_wanted(start.instance, start.number, start.instance))
        return;
    if (announced == nullptr)
        return failed(Error{ErrorCode::kInternal, "no token was made for it", "NoToken", 0});
    auto device = context_.environments.find(start.devices.front());
    bool on_gpu = device != context_.environments.end() && device->second.device_kind == "cuda";
    if (on_gpu && mps_.wanted() && mps_.is_starting())
        return starts_.wait(start);
    const std::vector<std::string> tokens =
        *announced; // they go as the node hears of the last rank
    LaunchedRank place;
    if (start.ranks > 1) {
        std::vector<std::string> hashes;
        for (const std::string& token : tokens)
            hashes.push_back(sha256_hex(token));
        auto rendezvous = crews_.begin(start, hashes);
        if (!rendezvous)
            return failed(rendezvous.error());
        place.rendezvous = std::move(*rendezvous);
    }
    for (place.rank = 0; place.rank < start.ranks; ++place.rank) {
        const node::InstanceName name = rank_name(start.instance, place.rank);
        if (auto starting = prepare(start, place, tokens.at(place.rank), on_gpu))
            launch(*starting);
        else
            crews_.hear(name, node::ProcessStartFailed{name, starting.error()});
    }
}

Result<NodeActor::Starting> NodeActor::prepare(const node::StartProcess& start,
                                               const LaunchedRank& place, const std::string& token,
                                               bool on_gpu) {
    BERTH_ASSIGN(SpawnOptions options, engine_launch(start, context_.paths, token, on_gpu, place));
    const bool from_disk =
        context_.state().policy.attach.on_mismatch == policies::OnMismatch::kDisk;
    options.environment["BERTH_FALLBACK"] = from_disk ? "disk" : "fail";
    options.environment["BERTH_LOADER"] = context_.paths.program_dir + "/berth-loader";
    if (on_gpu)
        share_by_mps(start, options);
    Starting starting{start.instance,    start.number,       rank_name(start.instance, place.rank),
                      sha256_hex(token), std::move(options), nullptr};
    // Rank 0 has the front end.
    if (!start.spec.engine.listen.empty() && place.rank == 0)
        BERTH_TRY(pass_socket(start, starting));
    return starting;
}

Status NodeActor::pass_socket(const node::StartProcess& start, Starting& starting) {
    const policies::EngineSpec& engine = start.spec.engine;
    if (engine.driver == policies::DriverKind::kProcess)
        services_.drop_journal(start.spec); // of an engine of ours before it
    BERTH_ASSIGN(starting.service, services_.ensure(start.spec));
    // The convention's sockets block; the open file is one for all who have it, and berthd never
    // accepts. An engine of ours sets it as it needs it.
    const int socket = starting.service->socket.get();
    const int flags = ::fcntl(socket, F_GETFL);
    if (engine.driver == policies::DriverKind::kProcess &&
        (flags < 0 || ::fcntl(socket, F_SETFL, flags & ~O_NONBLOCK) != 0))
        return fail_errno("the socket to pass on");
    starting.options.listen_fds = starting.service->listen_fds(
        engine.journal && engine.driver == policies::DriverKind::kBerth);
    return {};
}

void NodeActor::launch(const Starting& starting) {
    if (auto why = zygote_.why_not(starting.options))
        return execute(starting, *why);
    zygote_.fork(starting.options, [this, starting](Result<ZygoteLink::Newborn> born) {
        if (!is_wanted(starting.instance, starting.number, starting.rank_name)) {
            if (born)
                zygote_.discard(std::move(*born));
            return;
        }
        if (!born)
            return execute(starting, born.error().message);
        auto process = processes_.take(starting.rank_name, std::move(born->process));
        if (!process)
            return crews_.hear(starting.rank_name,
                               node::ProcessStartFailed{starting.rank_name, process.error()});
        started(starting, *process, {});
        born->let_go(); // from here on it may call, and is known
    });
}

// Whom others may preempt gets the policy's share of the multiprocessors, the others all of them.
void NodeActor::share_by_mps(const node::StartProcess& start, SpawnOptions& options) const {
    if (!mps_.wanted() || !mps_.ready())
        return;
    const policies::PolicySpec& policy = context_.state().policy;
    const policies::PriorityClass* of_class = policy.find_class(start.spec.class_name);
    const bool capped = of_class != nullptr && of_class->preemptible;
    for (const auto& [name, text] :
         mps_.environment(capped ? policy.sharing.batch_share_when_busy : 1.0))
        options.environment.emplace(name, text); // the document's own word goes before
}

void NodeActor::show_mps() {
    context_.mps = {mps_.wanted(), mps_.wanted() && mps_.ready(), mps_.why(),
                    mps_.pipe_directory()};
}

void NodeActor::follow_sharing() {
    const policies::PolicySpec& policy = context_.state().policy;
    mps_.want(policy.mode == policies::PolicyMode::kEnforce &&
              policy.sharing.compute == policies::Sharing::kMps);
    show_mps();
}

void NodeActor::mps_changed() {
    show_mps();
    const std::string object = "node/" + context_.node_name;
    if (context_.mps.ready)
        context_.note(false, object, "MpsReady",
                      "engines that are started from now on share the GPU under CUDA MPS");
    else if (context_.mps.wanted)
        context_.note(true, object, "MpsAbsent", mps_.why() + "; the node shares by its gates");
    engines_.tell_rules();
    for (const node::StartProcess& start : starts_.take_waiting())
        start_process(start, {});
}

void NodeActor::execute(const Starting& starting, const std::string& why) {
    auto process = processes_.start(starting.rank_name, starting.options);
    if (!process)
        return crews_.hear(starting.rank_name,
                           node::ProcessStartFailed{starting.rank_name, process.error()});
    started(starting, *process, why);
}

void NodeActor::started(const Starting& starting, const node::ProcessRef& process,
                        std::string why_exec) {
    log::info("started instance={} pid={} device={} command={} how={}{}{}",
              starting.rank_name.value, process.pid, device_of(starting.options),
              starting.options.command.front(), why_exec.empty() ? "forked" : "exec",
              why_exec.empty() ? "" : ": ", why_exec);
    context_.starts[starting.rank_name] = {process, std::move(why_exec)};
    crews_.hear(starting.rank_name,
                node::ProcessStarted{starting.rank_name, process, starting.token_sha256});
}

} // namespace berth
