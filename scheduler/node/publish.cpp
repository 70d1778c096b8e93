// SPDX-License-Identifier: Apache-2.0
// What engines fill themselves: sets that they publish, and weights that they keep for themselves.
// Each is a load without a loader, so that its bytes are asked for, made room for and counted as a
// load's are. And canaries, without which such a set's attacher is not Ready.
#include "scheduler/node/step.h"

#include <algorithm>

namespace berth::node {

namespace {

constexpr const char* kPublishedPrefix = "published/";
constexpr const char* kPublishedDtype = "published";

} // namespace

LoadKey published_key(const WeightSetId& set, const DeviceId& device) {
    return LoadKey{kPublishedPrefix + set.value, kPublishedDtype, device};
}

bool is_published(const LoadKey& key) {
    return key.dtype == kPublishedDtype;
}

void Step::on(const PublishRequested& event) {
    auto refuse = [&](ErrorCode code, const char* reason, std::string message) {
        act(PublicationAnswered{event.publication, std::nullopt,
                                Error{code, std::move(message), reason, 0}});
    };
    if (!s_.devices.contains(event.device))
        return refuse(ErrorCode::kNotFound, "DeviceNotFound",
                      "no device '" + event.device.value + "'");
    const DeviceUsage now = usage(s_, event.device);
    const uint64_t room = event.held ? now.total_bytes - std::min(now.total_bytes, now.used_bytes())
                                     : now.total_bytes;
    if (event.bytes > room)
        return refuse(ErrorCode::kResourceExhausted, "InsufficientMemory",
                      "it needs " + format_bytes(event.bytes) + " on " + event.device.value +
                          (event.held ? ", which has " + format_bytes(room) + " that are not taken"
                                      : ", which has " + format_bytes(room) + " in all"));
    LoadKey key = published_key(event.set, event.device);
    if (event.is_private) {
        key = LoadKey{"private/" + std::to_string(event.publication), "private", event.device};
    } else if (const WeightSet* set = find_set(s_, event.set, event.device)) {
        if (set->dropping)
            return refuse(ErrorCode::kUnavailable, "Dropping",
                          "weight set " + event.set.value + " is being dropped: ask again");
        return refuse(ErrorCode::kAlreadyExists, "AlreadyPublished",
                      "weight set " + event.set.value + " is resident: attach to it");
    } else if (const Load* other = find_load(key)) {
        return refuse(ErrorCode::kAlreadyExists, "BeingPublished",
                      "weight set " + event.set.value + " is being published by " + other->holder +
                          ": attach to it");
    }
    Load load;
    load.id = LoadId{next_id()};
    load.key = key;
    load.model = event.model;
    load.holder = event.holder;
    load.is_private = event.is_private;
    load.weight_bytes = load.bytes_total = event.bytes;
    load.started_at = load.progress_at = now_;
    load.phase = "waiting";
    if (const Instance* i = find(event.instance))
        load.priority = i->priority;
    const LoadId id = load.id;
    s_.loads[id] = std::move(load);
    act(EmitEvent{false, "load/" + std::to_string(static_cast<uint64_t>(id)),
                  event.is_private ? "PrivateLoad" : "Publishing",
                  event.holder + " fills " + format_bytes(event.bytes) + " on " +
                      event.device.value +
                      (event.is_private ? " for itself" : " as weight set " + event.set.value)});
    act(PublicationAnswered{event.publication, id, std::nullopt});
    Load& placed = s_.loads.at(id);
    if (!event.held)
        return try_go(placed);
    // Its memory is taken already, by a word that an earlier berthd gave.
    placed.state = Load::State::kLoading;
    placed.placed = true;
    placed.phase = "loading";
    act(GoLoad{id});
}

void Step::on(const PrivateLoadEnded& event) {
    const auto found = s_.loads.find(event.load);
    if (found != s_.loads.end() && found->second.is_private)
        s_.loads.erase(found);
}

void Step::on(const CanaryExpected& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || i->state != InstanceState::kStarting || i->canary_met == event.set)
        return;
    i->canary_due = event.set;
}

void Step::on(const CanaryReported& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->session)
        return;
    if (event.expected == event.found) {
        i->canary_met = event.set;
        if (i->canary_due == event.set)
            i->canary_due.reset();
        tell(*i, false, "CanaryMet", "it reproduced the canary of weight set " + event.set.value);
        if (i->state == InstanceState::kStarting && i->engine_state == EngineState::kReady)
            ready(*i);
        return;
    }
    if (i->substate == "Killed")
        return;
    i->reason = "CanaryMismatch";
    i->message = "the canary of weight set " + event.set.value + " gave " + event.found +
                 ", its publisher had " + event.expected;
    dirty(*i);
    tell(*i, true, i->reason, i->message + "; its process is ended");
    kill(*i);
}

// An engine's word that it is Ready counts once its canary does.
void Step::ready(Instance& i) {
    if (i.substate == "Killed")
        return; // it said so before it learnt of its end
    if (!i.canary_due)
        return become_running(i);
    i.reason = "CanaryDue";
    i.message =
        "said Ready, and has not yet reproduced the canary of weight set " + i.canary_due->value;
    dirty(i);
    tell(i, true, i.reason, i.message);
}

} // namespace berth::node
