// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/node_actor.h"

#include "base/hash.h"
#include "base/log.h"
#include "scheduler/act/rank_name.h"
#include "scheduler/act/record_mapping.h"
#include "scheduler/act/rollout_record.h"
#include "scheduler/node/durable.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <set>
#include <string_view>

namespace berth {

namespace {

ZygoteLink::Settings zygote_settings(const NodeContext& context) {
    ZygoteLink::Settings settings;
    settings.off = context.zygote_off;
    settings.program = context.paths.program_dir + "/berth-engine";
    settings.log_path = context.paths.state_dir + "/berth-zygote.log";
    for (const auto& [id, environment] : context.environments)
        settings.with_gpu = settings.with_gpu || environment.device_kind == "cuda";
    return settings;
}

MpsDaemon::Settings mps_settings(const NodeContext& context) {
    MpsDaemon::Settings settings;
    settings.pipe_directory = context.paths.runtime_dir + "/mps";
    settings.log_directory = context.paths.state_dir + "/mps";
    for (const auto& [id, environment] : context.environments)
        settings.has_gpu = settings.has_gpu || environment.device_kind == "cuda";
    return settings;
}

} // namespace

NodeActor::NodeActor(NodeContext& context, Store& store, PeerPolicy policy)
    : context_(context), loop_(context.io, store, *this), workers_(context.io),
      keeper_(context.io,
              KeeperStart{context.paths.runtime_dir, context.paths.state_dir + "/berth-keeper.log",
                          context.paths.program_dir + "/berth-keeper"},
              std::move(context.systemd_store), [this] { refill(); }),
      processes_(context.io, process_observer()),
      crews_(
          context,
          [this](const node::InstanceName& rank_name, const node::ProcessRef& process) {
              signal_rank(rank_name, process, SIGKILL);
          },
          [this](const node::InstanceName& rank_name) { engines_.renew(rank_name); }),
      zygote_(context.io, zygote_settings(context)),
      loaders_(context.io, context.paths,
               [this](node::Event event) {
                   if (const auto* progress = std::get_if<node::LoadProgress>(&event))
                       attach_.progress(*progress);
                   context_.post(std::move(event));
               }),
      tiers_(context, loaders_, workers_),
      timers_(context.io, [this](node::TimerId id) { context_.post(node::DeadlineExpired{id}); }),
      wall_clock_(context.io, [this](node::WallClockTold told) { context_.post(told); }),
      attach_(context, workers_.checkpoints), publish_(context, attach_),
      engines_(context, attach_, publish_, processes_, crews_, std::move(policy)),
      services_([this](std::string key, std::string meta, std::vector<UniqueFd> fds) {
          keep_service(std::move(key), std::move(meta), std::move(fds));
      }),
      mps_(context.io, mps_settings(context), [this] { mps_changed(); }) {
    context.loop = &loop_;
    engines_.use([this](const node::Instance& instance, std::vector<UniqueFd> fds) {
        services_.take_back(instance.spec, std::move(fds));
    });
}

NodeActor::~NodeActor() {
    stop();
}

void NodeActor::stop() {
    engines_.stop();
    crews_.stop();
    timers_.clear();
    wall_clock_.stop();
    zygote_.stop();
    mps_.stop();
    processes_.stop();
    workers_.stop();
}

Status NodeActor::listen() {
    return engines_.listen(context_.paths.engine_socket, 0660);
}

void NodeActor::announce(const node::Action& action) {
    if (const auto* start = std::get_if<node::StartProcess>(&action))
        starts_.announce(*start);
}

std::optional<StoreWrite> NodeActor::record_of(const node::Action& action) {
    if (const auto* persist = std::get_if<node::PersistInstance>(&action)) {
        node::InstanceRecovered kept = node::durable(persist->instance);
        // The token of a process that is about to be started must be on disk before it can call.
        starts_.complete(kept, persist->instance);
        std::vector<uint32_t> gate_slots;
        for (uint32_t rank = 0; rank < kept.ranks; ++rank)
            gate_slots.push_back(context_.gates.slot_of(rank_name(kept.name, rank)));
        return to_record(kept, persist->instance.spec, gate_slots);
    }
    if (const auto* forget = std::get_if<node::ForgetInstance>(&action))
        return ForgetInstance{forget->instance.value};
    if (const auto* persist = std::get_if<node::PersistWeights>(&action))
        return to_record(persist->set);
    if (const auto* keep = std::get_if<node::KeepWeights>(&action))
        return to_record(keep->set);
    if (const auto* persist = std::get_if<node::PersistDevice>(&action))
        return cordon_record(persist->device);
    if (const auto* persist = std::get_if<node::PersistOperation>(&action))
        return to_record(context_.operations.for_record(persist->operation));
    if (const auto* persist = std::get_if<node::PersistRollout>(&action))
        return to_record(persist->rollout);
    if (const auto* forget = std::get_if<node::ForgetRollout>(&action))
        return no_rollout(forget->instance);
    if (const auto* emit = std::get_if<node::EmitEvent>(&action)) {
        log::info("event object={} reason={} {}", emit->object, emit->reason, emit->message);
        return context_.events.add(emit->warning, emit->object, emit->reason, emit->message);
    }
    if (const auto* decision = std::get_if<node::Decision>(&action))
        return remember(*decision);
    return std::nullopt;
}

namespace {

constexpr size_t kDecisionsHardMax = 2'000;

std::string_view object_of(const DecisionRecord& record) {
    constexpr std::string_view kField = "\"object\":\"";
    const size_t at = record.document.find(kField);
    if (at == std::string::npos)
        return {};
    const std::string_view text = std::string_view(record.document).substr(at + kField.size());
    return text.substr(0, text.find('"'));
}

// The oldest goes, but the newest about an object stays longer: `berth explain` tells it of one
// that has stood still while much was decided about others.
void trim(std::deque<DecisionRecord>& kept) {
    if (kept.size() <= NodeContext::kDecisionsMax)
        return;
    std::set<std::string_view> newer;
    auto goes = kept.size() > kDecisionsHardMax ? kept.begin() : kept.end();
    for (auto one = kept.end(); one != kept.begin() && kept.size() <= kDecisionsHardMax;)
        if (!newer.insert(object_of(*--one)).second)
            goes = one;
    if (goes != kept.end())
        kept.erase(goes);
}

} // namespace

DecisionRecord NodeActor::remember(const node::Decision& decision) {
    DecisionRecord record = to_record(decision, "d-" + random_hex(6));
    context_.decisions.push_back(record);
    trim(context_.decisions);
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
    void operator()(const node::TidyImages& tidy) const { actor.tiers_.tidy(tidy); }
    void operator()(const node::LoadFinished& finished) const {
        actor.attach_.load_finished(finished);
    }
    void operator()(const node::StartProcess& start) const { actor.start_process(start, recorded); }
    void operator()(const node::TerminateProcess& to) const {
        actor.signal(to.instance, to.process, SIGTERM);
    }
    void operator()(const node::ContinueProcess& to) const {
        actor.signal(to.instance, to.process, SIGCONT);
    }
    void operator()(const node::InspectProcess& to) const { actor.inspect(to); }
    void operator()(const node::StopProcess& to) const {
        actor.signal(to.instance, to.process, SIGSTOP);
    }
    void operator()(const node::KillProcess& to) const {
        actor.withdraw(to.instance);
        actor.signal(to.instance, to.process, SIGKILL);
    }
    void operator()(const node::SendCommand& command) const {
        actor.send_command(command, recorded);
    }
    void operator()(const node::NoteRequests& note) const { actor.note_requests(note); }
    void operator()(const node::ForgetRequests& forget) const { actor.forget_requests(forget); }
    void operator()(const node::TellRules&) const {
        actor.follow_services();
        actor.follow_sharing();
        actor.engines_.tell_rules();
    }
    void operator()(const node::ConfirmBytes& confirm) const { actor.confirm_bytes(confirm); }
    void operator()(const node::ArmTimer& timer) const { actor.timers_.arm(timer.timer, timer.at); }
    void operator()(const node::CancelTimer& timer) const { actor.timers_.cancel(timer.timer); }
    void operator()(const node::PersistInstance&) const {}
    void operator()(const node::ForgetInstance& forget) const {
        actor.context_.gates.release(forget.instance);
        actor.starts_.forget(forget.instance);
        std::erase_if(actor.context_.starts, [&forget](const auto& one) {
            return rank_of(one.first).instance == forget.instance;
        });
    }
    void operator()(const node::PersistWeights& persist) const { actor.persist_pin(persist.set); }
    void operator()(const node::PersistDevice&) const {}
    void operator()(const node::PersistOperation&) const {}
    void operator()(const node::PersistRollout&) const {}
    void operator()(const node::ForgetRollout&) const {}
    void operator()(const node::AdoptDocument& adopt) const {
        actor.context_.adopt_document(adopt.spec);
    }
    void operator()(const node::OperationDone& done) const { actor.operation_done(done.operation); }
    void operator()(const node::EmitEvent&) const {}
    void operator()(const node::Decision&) const {}
};

void NodeActor::carry_out(const node::Action& action, const Status& recorded) {
    std::visit(ByKind{*this, recorded}, action);
}

// One that takes bytes is not sent without its record: the next berthd would not know of them, give
// them to another, and end the engine that holds more than its grant.
void NodeActor::send_command(const node::SendCommand& command, const Status& recorded) {
    const bool takes =
        command.kind == node::CommandKind::kRestore || command.kind == node::CommandKind::kGrow;
    if (recorded || !takes)
        return engines_.command(command);
    node::CommandDone refused;
    refused.instance = command.instance;
    refused.command = command.command;
    refused.error = recorded.error();
    context_.post(std::move(refused));
}

void NodeActor::operation_done(const node::Operation& operation) {
    // Whoever is told that weights are there may count on them from then on, also after a SIGKILL.
    if (operation.kind == node::OperationKind::kLoad && keeping_ > 0)
        return loaded_.push_back(operation);
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

} // namespace berth
