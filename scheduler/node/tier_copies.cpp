// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/durable.h"
#include "scheduler/node/step.h"
#include "scheduler/node/tiers.h"

#include <algorithm>

// Copies below the devices: when one is made, what gives way to it, and how it ends.
namespace berth::node {

namespace {

// A set on a device is in use for its copies too.
TimePoint last_used(const NodeState& state, const WeightSet& copy) {
    TimePoint latest = copy.last_used;
    for (const auto& [key, set] : state.weights)
        if (set.id == copy.id)
            latest = std::max(latest, set.last_used);
    return latest;
}

// What engines publish has no checkpoint that a load could name.
bool stays_single(const WeightSet& set) {
    return set.keys.empty() || is_published(*set.keys.begin());
}

} // namespace

// Room in a tier for a copy of a set: less recently used copies are dropped for it.
Step::Chance Step::make_tier_room(const DeviceId& tier, const WeightSet& wanted) {
    const TierUsage now = tier_usage(s_, tier);
    const uint64_t all = now.used_bytes + now.making_bytes + wanted.bytes;
    if (all <= now.limit_bytes)
        return Chance::kNow;
    uint64_t missing = all - now.limit_bytes;
    if (now.leaving_bytes >= missing)
        return Chance::kLater;
    missing -= now.leaving_bytes;
    std::vector<WeightSet*> older;
    for (auto& [key, copy] : s_.weights)
        if (belongs(s_, copy, tier) && !copy.dropping && copy.id != wanted.id &&
            !is_read(s_, copy) && last_used(s_, copy) <= wanted.last_used)
            older.push_back(&copy);
    std::sort(older.begin(), older.end(), [this](const WeightSet* a, const WeightSet* b) {
        return last_used(s_, *a) < last_used(s_, *b);
    });
    uint64_t found = 0;
    size_t count = 0;
    for (; count < older.size() && found < missing; ++count)
        found += older[count]->bytes;
    if (found < missing)
        return Chance::kNone;
    for (size_t n = 0; n < count; ++n)
        drop(*older[n]);
    return Chance::kLater;
}

// The policy's limit may have come down.
void Step::trim_tier(const DeviceId& tier) {
    for (;;) {
        const TierUsage now = tier_usage(s_, tier);
        if (now.used_bytes - now.leaving_bytes + now.making_bytes <= now.limit_bytes)
            return;
        WeightSet* oldest = nullptr;
        for (auto& [key, copy] : s_.weights)
            if (belongs(s_, copy, tier) && !copy.dropping && !is_read(s_, copy) &&
                (oldest == nullptr || last_used(s_, copy) < last_used(s_, *oldest)))
                oldest = &copy;
        if (oldest == nullptr)
            return; // the rest is being read: once more when that has ended
        drop(*oldest);
    }
}

Step::Chance Step::copy_chance(WeightSet& set, const DeviceId& tier) {
    const uint64_t limit = tier_limit(s_, tier);
    if (limit == 0 || set.dropping || set.stale || stays_single(set) || set.copied.contains(tier) ||
        s_.weights.contains({tier, set.id}) || now_ < set.copy_after)
        return Chance::kNone;
    if (set.bytes > limit) {
        set.copied.insert(tier); // told once
        act(EmitEvent{false, "weights/" + set.id.value, "NotCopied",
                      "its " + format_bytes(set.bytes) + " are more than " + tier.value +
                          " may hold in all, " + format_bytes(limit)});
        return Chance::kNone;
    }
    for (const auto& [id, load] : s_.loads)
        if (!load.copy_to.empty())
            return Chance::kLater; // one at a time
    const auto above = s_.weights.find({kHostTier, set.id});
    const bool from_host = above != s_.weights.end() && !above->second.dropping;
    if (tier == kImageTier && !from_host &&
        usage(s_, set.device).free_bytes < process_overhead_bytes(s_, set.device))
        return Chance::kNone;
    return make_tier_room(tier, set);
}

void Step::schedule_tiers() {
    if (s_.tidied_dir != s_.policy.memory.image_dir) {
        s_.tidied_dir = s_.policy.memory.image_dir;
        if (!s_.tidied_dir.empty())
            act(TidyImages{s_.tidied_dir});
    }
    drop_again();
    for (auto& [key, set] : s_.weights)
        if (set.stale && !set.dropping && lease_holders(s_, set).empty() &&
            (now_ >= set.copy_after || !is_lost(set.id)))
            drop(set);
    for (const DeviceId& tier : {kHostTier, kImageTier})
        if (tier == kHostTier || !s_.policy.memory.image_dir.empty())
            trim_tier(tier);
    const bool loading = std::any_of(s_.loads.begin(), s_.loads.end(), [](const auto& one) {
        return one.second.holder.empty() && one.second.copy_to.empty() &&
               one.second.state != Load::State::kEnding && one.second.phase != "waiting";
    });
    for (auto& [key, set] : s_.weights) {
        // Loads go first; but who waits for an evict waits for the copies alone.
        if (is_tier(set.device) || set.dropping || (loading && !set.leaving))
            continue;
        for (const DeviceId& tier : {kHostTier, kImageTier})
            if (copy_chance(set, tier) == Chance::kNow)
                start_copy(set, tier);
    }
    for (auto& [key, set] : s_.weights)
        if (set.leaving && !set.dropping)
            leave(set);
    wake_tiers();
}

void Step::drop_again() {
    for (auto& [key, set] : s_.weights)
        if (set.dropping && !set.drop_error.empty() && now_ >= set.drop_again) {
            set.drop_again = TimePoint::max();
            act(DropWeights{set.id, set.device});
        }
}

// A node on which nothing happens tries again all the same.
void Step::wake_tiers() {
    TimePoint next = TimePoint::max();
    for (const auto& [key, set] : s_.weights) {
        const TimePoint at = set.dropping ? set.drop_again : set.copy_after;
        if (at > now_)
            next = std::min(next, at);
    }
    if (next == TimePoint::max() || (s_.tier_timer && s_.tier_timer_at <= next))
        return;
    s_.tier_timer_at = next;
    arm(s_.tier_timer, Timer{Timer::Kind::kTiers, {}, {}}, next);
}

// Out of its device, once the copies of it that will be made are made.
void Step::leave(WeightSet& set) {
    set.leaving = true;
    const bool copied = is_read(s_, set) || copy_chance(set, kHostTier) != Chance::kNone ||
                        copy_chance(set, kImageTier) != Chance::kNone;
    if (copied)
        return;
    set.leaving = false;
    const std::vector<std::string> holders = lease_holders(s_, set);
    if (holders.empty())
        return drop(set);
    if (!set.operation)
        return;
    const OperationId operation = *set.operation;
    set.operation.reset();
    finish_operation(operation,
                     Error{ErrorCode::kFailedPrecondition,
                           "taken into use by " + holders.front() + " meanwhile", "WeightsInUse",
                           0},
                     "taken into use by " + holders.front() + " meanwhile");
}

void Step::start_copy(WeightSet& set, const DeviceId& tier) {
    const auto above = s_.weights.find({kHostTier, set.id});
    const bool from_host =
        tier == kImageTier && above != s_.weights.end() && !above->second.dropping;
    Load load;
    load.id = LoadId{next_id()};
    load.source = from_host ? kHostTier : set.device;
    load.from = set.id;
    load.copy_to = tier;
    load.key = LoadKey{"copy/" + set.id.value, "copy", load.source};
    load.made_on = set.device;
    load.weight_bytes = load.bytes_total = set.bytes;
    load.started_at = load.progress_at = load.placed_at = load.told_at = now_;
    load.phase = "copying";
    if (tier == kImageTier) { // it asks for nothing
        load.state = Load::State::kLoading;
        load.placed = true;
        load.overhead_bytes = process_overhead_bytes(s_, load.source);
        load.file = image_file(s_, set.id);
    }
    set.copied.insert(tier);
    // What is written to a disk says nothing of its progress: 20 MB/s are the least.
    const Nanoseconds least = std::chrono::microseconds(set.bytes / 20);
    std::optional<TimerId> stall;
    arm(stall, Timer{Timer::Kind::kLoadStall, {}, load.id},
        now_ + kLoadStallTime + (tier == kImageTier ? least : Nanoseconds(0)));
    if (tier == kImageTier)
        load.progress_at = now_ + least;
    act(StartCopy{load.id, set.id, load.source, set.device, tier, load.file});
    s_.loads[load.id] = std::move(load);
}

void Step::copy_planned(Load& load, const LoadPlanned& event) {
    load.weight_bytes = load.bytes_total = event.weight_bytes;
    // What the loader says is of the tier's side; where the set lies it needs a context too.
    load.overhead_bytes = std::max(event.overhead_bytes, process_overhead_bytes(s_, load.source));
    load.progress_at = now_;
    const TierUsage now = tier_usage(s_, load.copy_to);
    const bool fits = now.used_bytes + now.making_bytes <= now.limit_bytes;
    const bool room =
        is_tier(load.key.device) || load.overhead_bytes <= usage(s_, load.key.device).free_bytes;
    if (event.set == load.from && fits && room) {
        load.state = Load::State::kLoading;
        load.placed = true;
        act(GoLoad{load.id});
        return;
    }
    refuse_load(load,
                Error{event.set == load.from ? ErrorCode::kResourceExhausted : ErrorCode::kMismatch,
                      event.set == load.from ? "no room for the copy or for its loader's own memory"
                                             : "the loader copies " + event.set.value + " instead",
                      "CopyRefused", 0});
}

void Step::copy_made(Load& load, uint64_t bytes) {
    const auto source = s_.weights.find({load.source, load.from});
    if (source == s_.weights.end() || bytes > load.weight_bytes ||
        s_.weights.contains({load.copy_to, load.from})) {
        load.state = Load::State::kEnding;
        act(KillLoad{load.id});
        return end_copy(load, Error{ErrorCode::kCorrupt,
                                    format_bytes(bytes) + " were copied, planned were " +
                                        format_bytes(load.weight_bytes),
                                    "CopyFailed", 0});
    }
    WeightSet copy;
    copy.id = load.from;
    copy.fingerprint = source->second.fingerprint;
    copy.device = load.copy_to;
    copy.bytes = bytes;
    copy.models = source->second.models;
    copy.made_on = load.made_on;
    copy.file = load.file;
    copy.source = source->second.source;
    copy.last_used = source->second.last_used;
    for (LoadKey key : source->second.keys) {
        key.device = load.copy_to;
        copy.keys.insert(std::move(key));
    }
    load.state = Load::State::kEnding;
    const bool unwanted = source->second.dropping; // it was done before it could be ended
    if (unwanted && copy.device == kHostTier)
        return act(KillLoad{load.id});
    load.sealed = true;
    WeightSet& made = s_.weights[{copy.device, copy.id}] = copy;
    if (unwanted) {
        made.operation = source->second.operation;
        return drop(made);
    }
    if (const auto top = s_.weights.find({load.made_on, load.from}); top != s_.weights.end())
        top->second.copies_refused = 0;
    if (copy.device == kHostTier)
        act(KeepWeights{load.id, copy});
    else
        act(PersistWeights{copy});
    act(EmitEvent{false, "weights/" + copy.id.value, "Copied",
                  format_bytes(bytes) + " to " + copy.device.value +
                      (copy.file.empty() ? "" : ", " + copy.file) + ", in " +
                      format_duration(now_ - load.started_at)});
}

void Step::on(const ImageWritten& event) {
    const auto found = s_.loads.find(event.load);
    if (found != s_.loads.end() && found->second.copy_to == kImageTier &&
        found->second.state == Load::State::kLoading)
        copy_made(found->second, event.bytes);
}

void Step::end_copy(Load& load, const Error& error) {
    const auto source = s_.weights.find({load.source, load.from});
    if (source != s_.weights.end() && source->second.dropping)
        return; // ended for that
    std::string later;
    const auto top = s_.weights.find({load.made_on, load.from});
    if (error.code == ErrorCode::kResourceExhausted && top != s_.weights.end()) {
        WeightSet& set = top->second;
        const Nanoseconds wait = kCopyRetryTime * (1 << set.copies_refused);
        set.copies_refused = std::min(set.copies_refused + 1, kCopyRetryDoublings);
        set.copied.erase(load.copy_to);
        set.copy_after = now_ + wait;
        later = "; it is tried again in " + format_duration(wait);
    }
    act(EmitEvent{later.empty(), "weights/" + load.from.value, "CopyFailed",
                  "no copy in " + load.copy_to.value + ": " + error.message + later});
}

// The last one to read a set that is being dropped lets it go.
void Step::reader_gone(const Load& load) {
    const auto found = s_.weights.find({load.source, load.from});
    if (load.from.empty() || found == s_.weights.end() || !found->second.drop_waits ||
        is_read(s_, found->second))
        return;
    found->second.drop_waits = false;
    act(DropWeights{found->second.id, found->second.device});
}

} // namespace berth::node
