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

// What does not fit a number fits no device.
uint64_t asked_bytes(const PublishRequested& event) {
    uint64_t sum = 0;
    return __builtin_add_overflow(event.bytes, event.overhead_bytes, &sum) ? UINT64_MAX : sum;
}

} // namespace

LoadKey published_key(const WeightSetId& set, const DeviceId& device) {
    return LoadKey{kPublishedPrefix + set.value, kPublishedDtype, device};
}

bool is_published(const LoadKey& key) {
    return key.dtype == kPublishedDtype;
}

// Why the engine may not fill what it asks for, with the figures.
std::optional<Error> Step::publish_refusal(const PublishRequested& event) {
    const DeviceUsage now = usage(s_, event.device);
    const uint64_t room = event.held ? now.total_bytes - std::min(now.total_bytes, now.used_bytes())
                                     : now.total_bytes;
    if (asked_bytes(event) > room)
        return Error{ErrorCode::kResourceExhausted,
                     "it needs " + format_bytes(asked_bytes(event)) + " on " + event.device.value +
                         ", which has " + format_bytes(room) +
                         (event.held ? " that are not taken" : " in all"),
                     "InsufficientMemory", 0};
    if (event.is_private)
        return std::nullopt;
    if (const WeightSet* set = find_set(s_, event.set, event.device)) {
        if (set->dropping)
            return Error{ErrorCode::kUnavailable,
                         "weight set " + event.set.value + " is being dropped: ask again",
                         "Dropping", 0};
        return Error{ErrorCode::kAlreadyExists,
                     "weight set " + event.set.value + " is resident: attach to it",
                     "AlreadyPublished", 0};
    }
    if (const Load* other = find_load(published_key(event.set, event.device)))
        return Error{ErrorCode::kAlreadyExists,
                     "weight set " + event.set.value + " is being published by " + other->holder +
                         ": attach to it",
                     "BeingPublished", 0};
    return std::nullopt;
}

void Step::on(const PublishRequested& event) {
    const auto device = s_.devices.find(event.device);
    std::optional<Error> refused =
        device == s_.devices.end()
            ? Error{ErrorCode::kNotFound, "no device '" + event.device.value + "'",
                    "DeviceNotFound", 0}
            : publish_refusal(event);
    // Nobody holds more than a device has.
    const bool holds = event.held && device != s_.devices.end() &&
                       asked_bytes(event) <= device->second.total_bytes;
    if (refused && !holds)
        return act(PublicationAnswered{event.publication, std::nullopt, std::move(refused)});
    Load load;
    load.id = LoadId{next_id()};
    load.key = published_key(event.set, event.device);
    load.model = event.model;
    load.holder = event.holder;
    load.is_private = event.is_private || refused;
    if (load.is_private)
        load.key = LoadKey{"private/" + std::to_string(event.publication), "private", event.device};
    load.overhead_bytes = event.overhead_bytes;
    load.weight_bytes = event.bytes;
    if (refused && refused->reason == "InsufficientMemory") {
        // Others have been given what it holds: what is left is counted, and nothing twice.
        const DeviceUsage now = usage(s_, event.device);
        load.overhead_bytes = 0;
        load.weight_bytes = now.total_bytes - std::min(now.total_bytes, now.used_bytes());
    }
    load.bytes_total = load.weight_bytes;
    load.started_at = load.progress_at = now_;
    load.phase = "waiting";
    if (const Instance* i = find(event.instance))
        load.priority = i->priority;
    const LoadId id = load.id;
    s_.loads[id] = std::move(load);
    const std::string name = "load/" + std::to_string(static_cast<uint64_t>(id));
    const std::string what = format_bytes(event.bytes) + " on " + event.device.value;
    if (refused)
        act(EmitEvent{true, name, "HeldBesides",
                      event.holder + " holds " + what +
                          ", which count until it ends or lets go of them: " + refused->message});
    else
        act(EmitEvent{
            false, name, event.is_private ? "PrivateLoad" : "Publishing",
            event.holder + " fills " + what +
                (event.is_private ? " for itself" : " as weight set " + event.set.value)});
    act(PublicationAnswered{event.publication, id, std::move(refused)});
    Load& placed = s_.loads.at(id);
    if (!event.held)
        return try_go(placed);
    // Its memory is taken already, by a word that an earlier berthd gave.
    placed.state = Load::State::kLoading;
    placed.placed = true;
    placed.phase = "loading";
    act(GoLoad{id});
}

void Step::on(const PrivateLoadFilled& event) {
    const auto found = s_.loads.find(event.load);
    if (found != s_.loads.end() && found->second.is_private)
        found->second.overhead_bytes = 0;
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
