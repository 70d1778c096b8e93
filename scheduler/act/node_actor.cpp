// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/node_actor.h"

#include "base/hash.h"
#include "base/log.h"
#include "scheduler/act/confirm.h"
#include "scheduler/act/record_mapping.h"

#include <fmt/format.h>

#include <csignal>

namespace berth {

NodeActor::NodeActor(NodeContext& context, Store& store, PeerPolicy policy)
    : context_(context), loop_(context.io, store, *this), workers_(context.io, 1),
      keeper_(context.io,
              KeeperStart{context.paths.runtime_dir, context.paths.state_dir + "/berth-keeper.log",
                          context.paths.program_dir + "/berth-keeper"},
              std::move(context.systemd_store), [this] { refill(); }),
      processes_(context.io,
                 [this](ProcessTable::Ended ended) {
                     node::ProcessExited event;
                     event.instance = ended.instance;
                     event.process = ended.process;
                     event.clean = ended.clean;
                     event.description = ended.description;
                     event.log_path = context_.paths.engine_log(ended.instance);
                     context_.post(std::move(event));
                 }),
      loaders_(context.io, context.paths,
               [this](node::Event event) {
                   if (const auto* progress = std::get_if<node::LoadProgress>(&event))
                       attach_.progress(*progress);
                   context_.post(std::move(event));
               }),
      tiers_(context, loaders_, workers_),
      timers_(context.io, [this](node::TimerId id) { context_.post(node::DeadlineExpired{id}); }),
      attach_(context, workers_), publish_(context, attach_),
      engines_(context, attach_, publish_, processes_, std::move(policy)) {
    context.loop = &loop_;
}

NodeActor::~NodeActor() {
    stop();
}

void NodeActor::stop() {
    engines_.stop();
    timers_.clear();
    workers_.stop();
}

Status NodeActor::listen() {
    return engines_.listen(context_.paths.engine_socket, 0660);
}

void NodeActor::announce(const node::Action& action) {
    const auto* start = std::get_if<node::StartProcess>(&action);
    if (start != nullptr)
        tokens_[start->instance] = random_hex(32);
}

std::optional<StoreWrite> NodeActor::record_of(const node::Action& action) {
    if (const auto* persist = std::get_if<node::PersistInstance>(&action)) {
        InstanceRecord row =
            to_record(persist->instance, context_.gates.slot_of(persist->instance.name));
        // The token of a process that is about to be started must be on disk before it can call.
        if (auto token = tokens_.find(persist->instance.name); token != tokens_.end())
            row.token_hash = sha256_hex(token->second);
        return row;
    }
    if (const auto* forget = std::get_if<node::ForgetInstance>(&action))
        return ForgetInstance{forget->instance.value};
    if (const auto* persist = std::get_if<node::PersistWeights>(&action))
        return to_record(persist->set);
    if (const auto* keep = std::get_if<node::KeepWeights>(&action))
        return to_record(keep->set);
    if (const auto* persist = std::get_if<node::PersistOperation>(&action))
        return to_record(context_.operations.for_record(persist->operation));
    if (const auto* emit = std::get_if<node::EmitEvent>(&action)) {
        log::info("event object={} reason={} {}", emit->object, emit->reason, emit->message);
        return context_.events.add(emit->warning, emit->object, emit->reason, emit->message);
    }
    if (const auto* decision = std::get_if<node::Decision>(&action))
        return remember(*decision);
    return std::nullopt;
}

DecisionRecord NodeActor::remember(const node::Decision& decision) {
    DecisionRecord record = to_record(decision, "d-" + random_hex(6));
    context_.decisions.push_back(record);
    if (context_.decisions.size() > NodeContext::kDecisionsMax)
        context_.decisions.pop_front();
    return record;
}

// One overload a kind of action; those that only make records do nothing here.
struct NodeActor::ByKind {
    NodeActor& actor;
    const Status& recorded;

    void operator()(const node::StartLoad& load) const {
        const auto& known = actor.context_.environments;
        auto environment = known.find(load.key.device);
        if (!load.source.empty())
            actor.tiers_.load(load);
        else
            actor.loaders_.start(checkpoint_launch(
                load, environment == known.end() ? protocol::Environment() : environment->second));
    }
    void operator()(const node::StartCopy& copy) const { actor.tiers_.copy(copy); }
    void operator()(const node::GoLoad& load) const {
        actor.loaders_.go(load.load);
        actor.publish_.go(load.load);
    }
    void operator()(const node::PublicationAnswered& answer) const {
        actor.publish_.answered(answer);
    }
    void operator()(const node::RefuseLoad& load) const {
        actor.loaders_.refuse(load.load, load.error);
        actor.publish_.refuse(load.load, load.error);
    }
    void operator()(const node::KillLoad& load) const {
        actor.loaders_.kill(load.load);
        actor.tiers_.kill(load.load);
        actor.publish_.kill(load.load);
    }
    void operator()(const node::KeepWeights& keep) const { actor.keep_weights(keep); }
    void operator()(const node::DropWeights& drop) const { actor.drop_weights(drop); }
    void operator()(const node::LoadFinished& finished) const {
        actor.attach_.load_finished(finished);
    }
    void operator()(const node::StartProcess& start) const { actor.start_process(start, recorded); }
    void operator()(const node::TerminateProcess& to) const {
        actor.signal(to.instance, to.process, SIGTERM);
    }
    void operator()(const node::StopProcess& to) const {
        actor.signal(to.instance, to.process, SIGSTOP);
    }
    void operator()(const node::KillProcess& to) const {
        actor.signal(to.instance, to.process, SIGKILL);
    }
    void operator()(const node::SendCommand& command) const { actor.engines_.command(command); }
    void operator()(const node::ConfirmBytes& confirm) const { actor.confirm_bytes(confirm); }
    void operator()(const node::ArmTimer& timer) const { actor.timers_.arm(timer.timer, timer.at); }
    void operator()(const node::CancelTimer& timer) const { actor.timers_.cancel(timer.timer); }
    void operator()(const node::PersistInstance&) const {}
    void operator()(const node::ForgetInstance& forget) const {
        actor.context_.gates.release(forget.instance);
    }
    void operator()(const node::PersistWeights& persist) const { actor.persist_pin(persist.set); }
    void operator()(const node::PersistOperation&) const {}
    void operator()(const node::OperationDone& done) const { actor.operation_done(done.operation); }
    void operator()(const node::EmitEvent&) const {}
    void operator()(const node::Decision&) const {}
};

void NodeActor::carry_out(const node::Action& action, const Status& recorded) {
    std::visit(ByKind{*this, recorded}, action);
}

void NodeActor::start_process(const node::StartProcess& start, const Status& recorded) {
    std::string token = tokens_[start.instance];
    tokens_.erase(start.instance);
    auto failed = [&](Error error) {
        context_.post(node::ProcessStartFailed{start.instance, std::move(error)});
    };
    // Without its record an engine could not be found again after a crash: none is started.
    if (!recorded) {
        failed(recorded.error());
        return;
    }
    auto device = context_.environments.find(start.device);
    bool on_gpu = device != context_.environments.end() && device->second.device_kind == "cuda";
    auto options = engine_launch(start, context_.paths, token, on_gpu);
    if (!options) {
        failed(options.error());
        return;
    }
    const bool from_disk =
        context_.state().policy.attach.on_mismatch == policies::OnMismatch::kDisk;
    options->environment["BERTH_FALLBACK"] = from_disk ? "disk" : "fail";
    options->environment["BERTH_LOADER"] = context_.paths.program_dir + "/berth-loader";
    auto process = processes_.start(start.instance, *options);
    if (!process) {
        failed(process.error());
        return;
    }
    log::info("started instance={} pid={} device={} command={}", start.instance.value, process->pid,
              start.device.value, options->command.front());
    context_.post(node::ProcessStarted{start.instance, *process, sha256_hex(token)});
}

void NodeActor::signal(const node::InstanceName& instance, const node::ProcessRef& process,
                       int number) {
    if (auto sent = processes_.signal(instance, process, number); !sent) {
        log::info("signal {} to instance={} pid={}: {}, ignoring", number, instance.value,
                  process.pid, sent.error().message);
        return;
    }
    // A stopped process cannot act on SIGTERM.
    if (number == SIGTERM)
        (void)processes_.signal(instance, process, SIGCONT);
}

void NodeActor::operation_done(const node::Operation& operation) {
    const OperationEntry& entry = context_.operations.update(operation);
    loop_.record(to_record(entry));
    std::string kind(node::to_string(operation.kind));
    std::string state(node::to_string(operation.state));
    ++context_.metrics.operations[{kind, state}];
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - operation.started_at)
            .count();
    if (operation.kind == node::OperationKind::kPreempt && !operation.dry_run &&
        operation.state == node::OperationState::kSucceeded)
        context_.metrics.preempt_seconds[std::string(policies::to_string(operation.reached))]
            .observe(seconds);
    log::info("operation done id={} kind={} object={} state={} ms={:.1f} freed={}",
              operation.id.value, kind, operation.object, state, seconds * 1e3,
              operation.bytes_freed);
}

void NodeActor::confirm_bytes(const node::ConfirmBytes& confirm) {
    ConfirmRequest request;
    request.process = confirm.process;
    auto device = context_.environments.find(confirm.device);
    if (device != context_.environments.end() && device->second.device_kind == "cuda") {
        request.nvml = context_.nvml;
        request.gpu = confirm.device.value;
        if (auto found = context_.state().instances.find(confirm.instance);
            found != context_.state().instances.end())
            request.overhead_bytes = found->second.overhead_bytes;
    }
    workers_.run([request] { return confirm_grant(request); },
                 [this, name = confirm.instance](std::optional<uint64_t> bytes) {
                     node::BytesConfirmed event;
                     event.instance = name;
                     event.grant_bytes = bytes;
                     context_.post(std::move(event));
                 });
}

} // namespace berth
