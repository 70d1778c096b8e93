// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"
#include "scheduler/node/ranks.h"

#include <algorithm>

namespace berth::node {

namespace {

std::string name_of(const Load& load) {
    return "load/" + std::to_string(static_cast<uint64_t>(load.id));
}

} // namespace

Load* Step::find_load(const LoadKey& key) {
    for (auto& [id, load] : s_.loads)
        if (load.key == key && load.state != Load::State::kEnding)
            return &load;
    return nullptr;
}

// A load that is already running is joined, not repeated.
Load& Step::start_load(const LoadKey& key, const ModelName& model, int64_t priority) {
    if (Load* running = find_load(key)) {
        running->priority = std::max(running->priority, priority);
        return *running;
    }
    Load load;
    load.key = key;
    load.model = model;
    load.priority = priority;
    return begin_load(std::move(load));
}

Load& Step::begin_load(Load load) {
    load.id = LoadId{next_id()};
    choose_source(load);
    load.started_at = load.progress_at = now_;
    std::optional<TimerId> stall;
    arm(stall, Timer{Timer::Kind::kLoadStall, {}, load.id}, now_ + kLoadStallTime);
    const LoadId id = load.id;
    Load& begun = s_.loads[id] = std::move(load);
    act(EmitEvent{false, name_of(begun), "LoadStarted",
                  begun.key.path + " onto " + begun.key.device.value +
                      (begun.source.empty() ? "" : " from " + begun.source.value)});
    act(StartLoad{id, begun.key, begun.model, begun.source, begun.from, begun.file});
    return begun;
}

void Step::on(const LoadRequested& event) {
    Operation operation;
    operation.id = event.operation;
    operation.kind = OperationKind::kLoad;
    operation.object = event.model.empty() ? event.path : "model/" + event.model.value;
    auto refuse = [&](const LoadKey& key, Error error) {
        act(LoadFinished{key, std::nullopt, error});
        if (!event.operation.empty())
            refuse_operation(operation, std::move(error));
    };
    LoadKey key{event.path, event.dtype, event.device, event.quantization};
    if (!event.operation.empty() && !event.model.empty() && event.device.empty())
        if (const policies::ModelSpec* model = s_.documents.find_model(event.model.value);
            model != nullptr && model->tensor_parallel > 1)
            return refuse(key, Error{ErrorCode::kFailedPrecondition,
                                     "Model '" + event.model.value + "' is of " +
                                         std::to_string(model->tensor_parallel) +
                                         " ranks: name a device for each, in the order of the "
                                         "ranks (--device A,B); or leave it to its instance, whose "
                                         "parts are loaded where it is placed",
                                     "SeveralRanks", 0});
    if (!event.model.empty()) {
        const policies::ModelSpec* model = s_.documents.find_model(event.model.value);
        if (model == nullptr)
            return refuse(key, Error{ErrorCode::kNotFound,
                                     "no Model '" + event.model.value +
                                         "'; `berth policy` shows those that there are",
                                     "ModelNotFound", 0});
        key = load_key(*model, event.device, event.rank);
    }
    if (key.device.empty()) {
        uint64_t best = 0;
        for (const auto& [id, device] : s_.devices) {
            LoadKey there = key;
            there.device = id;
            const bool here = resident(s_, there) != nullptr;
            const uint64_t score = here ? UINT64_MAX : usage(s_, id).free_bytes;
            if (key.device.empty() || score > best) {
                best = score;
                key.device = id;
            }
        }
    }
    if (!s_.devices.contains(key.device))
        return refuse(key, Error{ErrorCode::kNotFound,
                                 key.device.empty() ? "this node has no device"
                                                    : "no device '" + key.device.value + "'",
                                 "DeviceNotFound", 0});
    if (const WeightSet* set = resident(s_, key)) {
        const WeightSetId id = set->id;
        s_.weights.at({key.device, id}).last_used = now_;
        act(LoadFinished{key, id, std::nullopt});
        if (!event.operation.empty())
            answer_operation(operation, "weight set " + id.value + " is resident on " +
                                            key.device.value + " already");
        return;
    }
    Load& load = start_load(key, event.model, 0);
    if (event.operation.empty() || s_.operations.contains(event.operation))
        return;
    load.operations.insert(event.operation);
    begin_operation(operation);
}

void Step::on(const LoadPlanned& event) {
    const auto found = s_.loads.find(event.load);
    if (found == s_.loads.end() || found->second.state != Load::State::kPlanning)
        return;
    Load& load = found->second;
    if (!load.copy_to.empty())
        return copy_planned(load, event);
    load.weight_bytes = event.weight_bytes;
    load.overhead_bytes = event.overhead_bytes;
    load.bytes_total = event.weight_bytes;
    load.phase = "waiting";
    load.progress_at = now_;
    s_.known_weight_bytes[load.key] = event.weight_bytes;
    s_.known_load_overhead[load.key] = event.overhead_bytes;
    const auto same = s_.weights.find({load.key.device, event.set});
    if (same != s_.weights.end() && !same->second.dropping) {
        // Another path to the same content: that set serves this load too.
        same->second.keys.insert(load.key);
        same->second.stale = false;
        act(PersistWeights{same->second});
        load.state = Load::State::kEnding;
        act(RefuseLoad{load.id, Error{ErrorCode::kAlreadyExists,
                                      "weight set " + event.set.value + " is resident already",
                                      "AlreadyResident", 0}});
        end_load(load, event.set, std::nullopt);
        return;
    }
    try_go(load);
}

// Gives Go if there is room, waits if room is coming, refuses else.
void Step::try_go(Load& load) {
    const uint64_t need = load.weight_bytes + load.overhead_bytes;
    Taker who{name_of(load), nullptr, load.priority, false, {load.key}, nullptr};
    uint64_t claimed = 0; // by waiting instances that matter more than this load's own
    std::optional<Board> board;
    for (const auto& [name, i] : s_.instances) {
        if (i.state != InstanceState::kLoading || !i.is_on(load.key.device))
            continue;
        const policies::ModelSpec* model = s_.documents.find_model(i.spec.model);
        if (model != nullptr && is_load_of(*model, load.key)) {
            const policies::PriorityClass* of_class = s_.policy.find_class(i.spec.class_name);
            who.preempts_lower =
                who.preempts_lower || (of_class != nullptr && of_class->preempts_lower);
            who.burning = who.burning || is_urgent(i);
        } else if (i.priority > load.priority) {
            if (!board)
                board.emplace(s_);
            claimed += board->need_bytes(i, *board->find(load.key.device));
        }
    }
    const uint64_t free = usage(s_, load.key.device).free_bytes;
    const uint64_t available = free > claimed ? free - claimed : 0;
    if (need <= available) {
        load.state = Load::State::kLoading;
        load.placed = true;
        load.placed_at = load.told_at = now_;
        load.phase = "loading";
        load.progress_at = now_;
        act(GoLoad{load.id});
        return;
    }
    std::string why;
    if (make_room(load.key.device, need - available, who, why))
        return; // tried again when bytes have come free
    refuse_load(load, Error{ErrorCode::kResourceExhausted,
                            load.key.path + " needs " + format_bytes(need) + " on " +
                                load.key.device.value + ", " +
                                room_words(s_, load.key.device, available) +
                                (why.empty() ? "" : "; " + why),
                            "InsufficientMemory", 0});
}

void Step::refuse_load(Load& load, Error error) {
    load.state = Load::State::kEnding;
    act(RefuseLoad{load.id, error});
    end_load(load, std::nullopt, std::move(error));
}

void Step::on(const LoadProgress& event) {
    const auto found = s_.loads.find(event.load);
    if (found == s_.loads.end() || found->second.state == Load::State::kEnding)
        return;
    Load& load = found->second;
    load.phase = event.phase;
    load.bytes_done = event.bytes_done;
    load.bytes_total = event.bytes_total;
    load.progress_at = now_;
    tell_progress(load);
}

// A long load says now and then how far it is.
void Step::tell_progress(Load& load) {
    if (!load.placed || load.bytes_done == 0 || now_ - load.told_at < kProgressEventInterval)
        return;
    load.told_at = now_;
    const double seconds = std::chrono::duration<double>(now_ - load.placed_at).count();
    const double rate = static_cast<double>(load.bytes_done) / seconds;
    const uint64_t left = load.bytes_total - std::min(load.bytes_total, load.bytes_done);
    const auto wait =
        std::chrono::milliseconds(static_cast<int64_t>(1e3 * static_cast<double>(left) / rate));
    act(EmitEvent{false, name_of(load), "LoadProgress",
                  format_bytes(load.bytes_done) + " of " + format_bytes(load.bytes_total) + ", " +
                      format_bytes(static_cast<uint64_t>(rate)) + "/s, " + format_duration(wait) +
                      " left"});
}

void Step::on(const LoadSealed& event) {
    const auto found = s_.loads.find(event.load);
    if (found == s_.loads.end() || found->second.state != Load::State::kLoading)
        return;
    Load& load = found->second;
    if (!load.copy_to.empty())
        return copy_made(load, event.bytes);
    const auto same = s_.weights.find({load.key.device, event.set});
    if (same != s_.weights.end() && !same->second.dropping && load.holder.empty()) {
        // Another load of the same content was faster: its set serves this one too.
        same->second.keys.insert(load.key);
        same->second.stale = false;
        act(PersistWeights{same->second});
        load.state = Load::State::kEnding;
        act(KillLoad{load.id});
        end_load(load, event.set, std::nullopt);
        return;
    }
    if (event.bytes > load.weight_bytes || same != s_.weights.end()) {
        const Error broken{ErrorCode::kCorrupt,
                           "the loader sealed " + format_bytes(event.bytes) + " as " +
                               event.set.value + " after it had planned " +
                               format_bytes(load.weight_bytes),
                           "LoadFailed", 0};
        load.state = Load::State::kEnding;
        act(KillLoad{load.id});
        end_load(load, std::nullopt, broken);
        return;
    }
    WeightSet set;
    set.id = event.set;
    set.fingerprint = event.fingerprint;
    set.device = load.key.device;
    set.bytes = event.bytes;
    set.keys.insert(load.key);
    set.last_used = now_;
    set.source = !load.holder.empty()  ? "publisher"
                 : load.source.empty() ? "checkpoint"
                                       : load.source.value;
    set.pinned = s_.pinned_keys.erase(load.key) > 0;
    if (!load.model.empty())
        set.models.insert(load.model);
    for (const policies::ModelSpec& model : s_.documents.models) {
        if (load_key(model, load.key.device, load.key.rank) != load.key)
            continue;
        set.models.insert(ModelName(model.name));
        set.pinned = set.pinned || model.pin;
    }
    load.sealed = true;
    load.state = Load::State::kEnding;
    const std::chrono::duration<double> took = now_ - load.placed_at;
    if (set.source == "checkpoint" && took.count() > 0)
        s_.load_bytes_per_second =
            static_cast<uint64_t>(static_cast<double>(set.bytes) / took.count());
    s_.weights[{set.device, set.id}] = set;
    act(KeepWeights{load.id, set});
    act(EmitEvent{false, "weights/" + set.id.value, "Resident",
                  load.key.path + " on " + set.device.value + ", " + format_bytes(set.bytes) +
                      ", from " + set.source + " in " + format_duration(now_ - load.started_at)});
    end_load(load, set.id, std::nullopt);
}

void Step::on(const LoadFailed& event) {
    const auto found = s_.loads.find(event.load);
    if (found == s_.loads.end() || found->second.state == Load::State::kEnding)
        return;
    found->second.state = Load::State::kEnding;
    end_load(found->second, std::nullopt, event.error);
}

void Step::on(const LoaderExited& event) {
    const auto found = s_.loads.find(event.load);
    if (found == s_.loads.end())
        return;
    if (found->second.state != Load::State::kEnding) {
        found->second.state = Load::State::kEnding;
        end_load(found->second, std::nullopt,
                 Error{ErrorCode::kUnavailable,
                       "the loader of " + found->second.key.path + " ended before it was done (" +
                           event.description + ")",
                       "LoaderDied", 0});
    }
    for (auto it = s_.timers.begin(); it != s_.timers.end();) {
        if (it->second.kind == Timer::Kind::kLoadStall && it->second.load == event.load) {
            act(CancelTimer{it->first});
            it = s_.timers.erase(it);
        } else {
            ++it;
        }
    }
    const Load gone = std::move(found->second);
    s_.loads.erase(found);
    reader_gone(gone);
}

// Tells all who wait for it. The record stays until the loader's process has ended.
void Step::end_load(Load& load, const std::optional<WeightSetId>& set, std::optional<Error> error) {
    if (!load.copy_to.empty())
        return error ? end_copy(load, *error) : void();
    if (error && !load.source.empty() && error->reason != "InsufficientMemory")
        return fall_through(load, *error);
    act(LoadFinished{load.key, set, error});
    if (error)
        act(EmitEvent{true, name_of(load), error->reason.empty() ? "LoadFailed" : error->reason,
                      error->message});
    for (const OperationId& operation : load.operations)
        finish_operation(operation, error,
                         error ? error->message
                               : "weight set " + set->value + " is resident on " +
                                     load.key.device.value);
    load.operations.clear();
    for (auto& [name, i] : s_.instances) {
        if (i.state != InstanceState::kLoading || !i.is_on(load.key.device))
            continue;
        const policies::ModelSpec* model = s_.documents.find_model(i.spec.model);
        if (model != nullptr && !waits_for(i, *model, load.key))
            continue;
        const auto comes = [this](const LoadKey& key) { return find_load(key) != nullptr; };
        if (!error && model != nullptr && std::ranges::any_of(missing_parts(s_, i, *model), comes))
            continue; // for the other ranks' parts
        i.devices.clear();
        if (!error) {
            enter(i, InstanceState::kPending, "", "", "its weight set is resident");
        } else if (error->reason == "InsufficientMemory") {
            i.restart_at = now_ + kRoomRetryTime;
            arm(i.aside_timer, Timer{Timer::Kind::kBackOff, i.name, {}}, i.restart_at);
            enter(i, InstanceState::kPending, "", error->reason, error->message);
            if (i.operation)
                finish_operation(*i.operation, error, error->message);
        } else {
            record_failure(i, error->reason.empty() ? "LoadFailed" : error->reason, error->message);
        }
    }
}

void Step::load_stalled(LoadId id) {
    const auto found = s_.loads.find(id);
    if (found == s_.loads.end())
        return;
    Load& load = found->second;
    std::optional<TimerId> stall;
    if (now_ - load.progress_at < kLoadStallTime) {
        arm(stall, Timer{Timer::Kind::kLoadStall, {}, id}, load.progress_at + kLoadStallTime);
        return;
    }
    act(KillLoad{id});
    if (load.state == Load::State::kEnding)
        return;
    load.state = Load::State::kEnding;
    end_load(load, std::nullopt,
             Error{ErrorCode::kDeadlineExceeded,
                   "the loader of " + load.key.path + " made no progress for " +
                       format_duration(kLoadStallTime),
                   "LoadStalled", 0});
}

} // namespace berth::node
