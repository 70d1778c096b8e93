// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/daemon.h"

#include "scheduler/node/durable.h"
#include "scheduler/node/tiers.h"

#include <algorithm>
#include <csignal>

namespace berth::simulate {

using std::chrono::milliseconds;
using std::chrono::seconds;

Daemon::Daemon(Stage& stage, const Shape& shape, Records& records, Observer observer)
    : stage_(stage), shape_(shape), records_(records), observer_(std::move(observer)),
      documents_(shape.documents) {}

void Daemon::use(Engines& engines, Loaders& loaders, Guests& guests, WeightMemory& memory) {
    engines_ = &engines;
    loaders_ = &loaders;
    guests_ = &guests;
    memory_ = &memory;
}

void Daemon::post(node::Event event) {
    if (!up_)
        return;
    queue_.push_back(std::move(event));
    run();
}

void Daemon::run() {
    if (running_)
        return;
    running_ = true;
    while (up_ && !dead_) {
        if (!queue_.empty()) {
            const node::Event event = std::move(queue_.front());
            queue_.pop_front();
            decide(event);
        } else if (!steps_.empty() && steps_.front()->ready) {
            const std::shared_ptr<Step> step = steps_.front();
            steps_.pop_front();
            for (const node::Action& action : step->actions) {
                if (!records_.is_intent(action) && dies_here())
                    break;
                carry_out(action, step->recorded);
            }
        } else {
            break;
        }
    }
    running_ = false;
    if (dead_)
        kill();
}

bool Daemon::dies_here() {
    if (!points_left_)
        return dead_;
    if (*points_left_ > 0) {
        --*points_left_;
        return false;
    }
    if (engines_->has_unrecorded_program())
        return false; // at the next point (README.md: what is not simulated)
    points_left_.reset();
    dead_ = true;
    return true;
}

void Daemon::decide(const node::Event& event) {
    auto step = std::make_shared<Step>();
    step->actions = node::apply(state_, event, stage_.now);
    events_ += std::holds_alternative<node::EngineHeard>(event) ? 0 : 1;
    if (stage_.keeps_log)
        for (const node::Action& action : step->actions)
            stage_.note("  " + node::describe(action));
    observer_(event, step->actions);
    if (step->actions.empty())
        return;
    for (const node::Action& action : step->actions) {
        if (const auto* start = std::get_if<node::StartProcess>(&action)) {
            std::string& token = tokens_[start->instance];
            token = start->instance.value + "#" + std::to_string(++tokens_made_);
        }
        step->intent = step->intent || Records::is_intent(action);
    }
    step->tokens = tokens_; // until its process is started, each record names its token
    step->ready = !step->intent;
    steps_.push_back(step);
    if (step->intent)
        write(*step);
}

// One writer: batches become durable in their order. With a full disk they wait; with a full queue
// the batch fails at once, and what it announced is done without its record.
void Daemon::write(Step& step) {
    const std::shared_ptr<Step> kept = steps_.back();
    const std::string what = "write " + std::to_string(++writes_);
    // Not while it starts: what is found then is less than the queue takes.
    if (state_.ready && stage_.now < disk_full_until_ &&
        stage_.fault(what + " finds the queue full", 300)) {
        step.recorded = false;
        stage_.records_lost = true;
        step.ready = true;
        return;
    }
    writer_free_at_ = std::max({writer_free_at_, stage_.now, disk_full_until_}) +
                      std::chrono::microseconds(stage_.dice.of(what).between(50, 3000));
    stage_.calendar.at(writer_free_at_, [this, kept, life = lives_] {
        if (!up_ || life != lives_)
            return;
        if (dies_here())
            return kill();
        records_.write(kept->actions, kept->tokens, stage_.now);
        for (const node::Action& action : kept->actions)
            if (const auto* persist = std::get_if<node::PersistInstance>(&action))
                engines_->recorded(persist->instance.name, persist->instance.process);
        if (dies_here())
            return kill();
        kept->ready = true;
        run();
    });
}

// One overload a kind of action that somebody must carry out.
struct Daemon::ByKind {
    Daemon& d;
    bool recorded;

    template <typename Other>
    void operator()(const Other&) const {} // records alone
    void operator()(const node::StartLoad& a) const { d.loaders_->start(a); }
    void operator()(const node::StartCopy& a) const { d.loaders_->copy(a); }
    void operator()(const node::GoLoad& a) const {
        d.loaders_->go(a.load);
        d.guests_->go(a.load);
    }
    void operator()(const node::RefuseLoad& a) const {
        d.loaders_->refuse(a.load);
        d.guests_->refuse(a.load);
    }
    void operator()(const node::KillLoad& a) const {
        d.loaders_->kill(a.load);
        d.guests_->kill(a.load);
    }
    void operator()(const node::KeepWeights& a) const {
        d.memory_->set_recorded({a.set.device, a.set.id}, recorded);
        d.loaders_->keep(a);
        d.guests_->keep(a);
    }
    void operator()(const node::DropWeights& a) const { d.loaders_->drop(a, d.records_); }
    void operator()(const node::PublicationAnswered& a) const { d.guests_->answered(a); }
    void operator()(const node::PersistWeights& a) const {
        if (recorded)
            d.memory_->set_recorded({a.set.device, a.set.id}, true);
        d.memory_->pin({a.set.device, a.set.id}, a.set.pinned);
    }
    void operator()(const node::StartProcess& a) const { d.start_process(a, recorded); }
    void operator()(const node::TellRules&) const { d.engines_->follow(d.documents_); }
    void operator()(const node::OperationDone& a) const { d.on_answer(a.operation); }
    void operator()(const node::TerminateProcess& a) const {
        d.engines_->signal(a.instance, a.process, SIGTERM);
    }
    void operator()(const node::StopProcess& a) const {
        d.engines_->signal(a.instance, a.process, SIGSTOP);
    }
    void operator()(const node::ContinueProcess& a) const {
        d.engines_->signal(a.instance, a.process, SIGCONT);
    }
    void operator()(const node::KillProcess& a) const {
        d.engines_->signal(a.instance, a.process, SIGKILL);
    }
    void operator()(const node::InspectProcess& a) const {
        d.stage_.after(milliseconds(5), [&daemon = d, a] {
            daemon.post(node::ProcessInspected{a.instance, a.process, "its state is D"});
        });
    }
    // One that takes bytes is not sent without its record.
    void operator()(const node::SendCommand& a) const {
        if (recorded ||
            (a.kind != node::CommandKind::kRestore && a.kind != node::CommandKind::kGrow))
            return d.engines_->command(a);
        node::CommandDone refused;
        refused.instance = a.instance;
        refused.command = a.command;
        refused.error = Error{ErrorCode::kResourceExhausted, "its record cannot be written",
                              "StoreQueueFull", 0};
        d.post(std::move(refused));
    }
    void operator()(const node::ConfirmBytes& a) const {
        d.stage_.after(milliseconds(2), [&daemon = d, a] {
            daemon.post(node::BytesConfirmed{a.instance, daemon.engines_->driver_says(a)});
        });
    }
    void operator()(const node::AdoptDocument& a) const { d.adopt_document(a.spec); }
    void operator()(const node::ArmTimer& a) const {
        d.timers_[a.timer] = a.at;
        d.stage_.calendar.at(std::max(a.at, d.stage_.now), [&daemon = d, a, life = d.lives_] {
            if (life != daemon.lives_ || daemon.timers_.erase(a.timer) == 0)
                return;
            daemon.engines_->speak_before(a.timer);
            if (life == daemon.lives_)
                daemon.post(node::DeadlineExpired{a.timer});
        });
    }
    void operator()(const node::CancelTimer& a) const { d.timers_.erase(a.timer); }
};

void Daemon::carry_out(const node::Action& action, bool recorded) {
    std::visit(ByKind{*this, recorded}, action);
}

void Daemon::start_process(const node::StartProcess& start, bool recorded) {
    const auto token = tokens_.find(start.instance);
    const std::string kept = token == tokens_.end() ? "" : token->second;
    if (token != tokens_.end())
        tokens_.erase(token);
    auto failed = [&](const char* why) {
        post(node::ProcessStartFailed{start.instance, Error{ErrorCode::kIo, why, "", 0}});
    };
    // Without its record an engine could not be found again after a crash: none is started.
    if (!recorded)
        return failed("its record cannot be written");
    const node::ProcessRef process = engines_->start(start, kept);
    if (!process)
        return failed("fork");
    node::ProcessStarted started{start.instance, process, kept, {}};
    for (uint32_t rank = 1; rank < start.ranks; ++rank) // what is told of them is told of rank 0
        started.others.push_back(
            {{process.pid + static_cast<int>(rank) * 1'000'000, process.start_ticks},
             kept + "/" + std::to_string(rank)});
    post(started);
}

void Daemon::kill() {
    if (!up_)
        return;
    if (engines_->has_unrecorded_program())
        return kill_in(0, downtime_, keeper_too_);
    stage_.note("berthd dies");
    up_ = dead_ = false;
    points_left_.reset();
    queue_.clear();
    steps_.clear();
    timers_.clear();
    tokens_.clear();
    ++lives_;
    engines_->berthd_ended();
    loaders_->berthd_ended();
    if (std::exchange(keeper_too_, false))
        memory_->keeper_ended();
    memory_->berthd_ended();
    guests_->berthd_ended();
    stage_.after(std::max<Nanoseconds>(downtime_, milliseconds(20)), [this] { start(); });
}

void Daemon::kill_in(uint64_t points, Nanoseconds downtime, bool keeper_too) {
    points_left_ = points;
    downtime_ = downtime;
    keeper_too_ = keeper_too;
}

void Daemon::start() {
    if (up_)
        return;
    stage_.note("berthd starts");
    state_ = node::NodeState();
    writer_free_at_ = stage_.now;
    up_ = true;
    running_ = true; // as berthd: all that is found is told before anything is carried out
    recover();
    running_ = false;
    run();
    for (const WeightMemory::Place& place : std::exchange(forgotten_, {}))
        if (up_)
            // Behind what its start has written.
            write_later([this, place] { records_.forget_weights(place.second, place.first); });
    if (up_ && std::exchange(keeper_is_new_, false))
        write_later([this] { records_.keeper_seen(memory_->keeper()); });
    if (up_ && on_start)
        on_start();
}

void Daemon::recover() {
    tell_wall_clock();
    std::string differs;
    const Durable durable = records_.read(stage_.now, differs);
    if (!differs.empty())
        stage_.wrong("records-differ", differs);
    for (const Shape::Device& device : shape_.devices) {
        node::DeviceSeen seen;
        seen.id = device.id;
        seen.kind = device.kind;
        seen.name = device.kind == DeviceKind::kCuda ? "GPU" : "host";
        seen.total_bytes = device.bytes;
        if (const auto cordon = durable.cordons.find(device.id); cordon != durable.cordons.end()) {
            seen.cordoned = true;
            seen.cordon_reason = cordon->second;
        }
        post(seen);
    }
    for (const auto& [place, set] : loaders_->kept()) {
        const auto record = durable.placements.find(place);
        node::WeightsAdopted adopted =
            record == durable.placements.end() ? node::WeightsAdopted() : record->second;
        adopted.id = place.second; // the keeper's word goes first
        adopted.device = place.first;
        adopted.fingerprint = set.fingerprint;
        adopted.bytes = set.bytes;
        adopted.rank = set.rank;
        adopted.ranks = set.ranks;
        if (set.published) {
            const node::LoadKey key = node::published_key(place.second, place.first);
            adopted.path = key.path;
            adopted.dtype = key.dtype;
        }
        if (adopted.path.empty())
            adopted.path = set.path;
        adopted.pinned = adopted.pinned || set.pinned;
        post(adopted);
    }
    adopt_lost(durable);
    for (const auto& [place, record] : durable.placements)
        if (place.first == node::kImageTier && loaders_->images().contains(place.second))
            post(record);
    for (const auto& [name, row] : durable.instances) {
        node::InstanceRecovered recovered = row;
        if (!recovered.process && !recovered.token_sha256.empty())
            recovered.never_started = !engines_->has_token(recovered.token_sha256);
        recovered.alive = row.process && engines_->is_alive(row.process);
        if (recovered.alive)
            engines_->adopted(name, row.process);
        post(recovered);
    }
    for (const auto& [id, operation] : durable.operations)
        post(node::OperationRecovered{operation});
    for (const auto& [name, rollout] : durable.rollouts)
        post(node::RolloutRecovered{rollout});
    post(node::DocumentsApplied{documents_});
}

// As scheduler/act/recovery.cpp does: what a keeper has taken with it counts as long as somebody
// has it mapped.
void Daemon::adopt_lost(const Durable& durable) {
    keeper_is_new_ = durable.keeper != memory_->keeper();
    for (const bool again : {true, false}) // what was lost before comes first: see there
        for (const auto& [place, record] : durable.placements)
            if (node::is_lost(place.second) == again)
                adopt_lost(durable, place, record);
    memory_->forget_uncounted();
}

void Daemon::adopt_lost(const Durable& durable, const WeightMemory::Place& place,
                        const node::WeightsAdopted& record) {
    const auto& [device, set] = place;
    if (device == node::kImageTier || memory_->is_kept(set, device))
        return;
    bool may_be_mapped = keeper_is_new_ || node::is_lost(set);
    for (const auto& [name, row] : durable.instances)
        may_be_mapped = may_be_mapped || std::ranges::find(row.weights, set) != row.weights.end();
    if (device != node::kHostTier && may_be_mapped && record.bytes > 0) {
        node::WeightsAdopted lost = record;
        lost.lost = true;
        memory_->count_lost(place);
        post(lost);
    }
    if (device == node::kHostTier || !node::is_lost(set))
        forgotten_.push_back(place);
}

void Daemon::write_later(std::function<void()> record) {
    writer_free_at_ = std::max(writer_free_at_, stage_.now) + std::chrono::microseconds(200);
    stage_.calendar.at(writer_free_at_, [this, record = std::move(record), life = lives_] {
        if (up_ && life == lives_)
            record();
    });
}

void Daemon::apply(policies::Documents documents) {
    documents_ = std::move(documents);
    post(node::DocumentsApplied{documents_});
}

void Daemon::tell_wall_clock() {
    const Nanoseconds wall = stage_.wall + stage_.now.time_since_epoch();
    post(node::WallClockTold{std::chrono::duration_cast<seconds>(wall).count(), 3600});
}

void Daemon::disk_fills_up(Nanoseconds duration) {
    disk_full_until_ = std::max(disk_full_until_, stage_.now + duration);
}

} // namespace berth::simulate
