// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"

#include <optional>
#include <set>
#include <string>

// What a node has beside its instances: devices, weight sets, leases, loads.
namespace berth::node {

struct Device {
    DeviceId id;
    DeviceKind kind = DeviceKind::kHost;
    std::string name; // "NVIDIA H200"
    uint64_t total_bytes = 0;
    bool cordoned = false; // nothing new is placed or resumed there
    std::string cordon_reason;
};

// A sealed weight set that is resident on a device.
struct WeightSet {
    WeightSetId id;
    std::string fingerprint;
    DeviceId device;
    uint64_t bytes = 0;         // of its segments
    std::set<LoadKey> keys;     // the loads that it answers (paths to the same content share it)
    std::set<ModelName> models; // for people
    bool pinned = false;
    bool dropping = false; // DropWeights is out; the bytes count until WeightsDropped
    TimePoint last_used;
    std::optional<OperationId> operation; // the evict that waits for it
    std::string source;        // what its load read: "checkpoint", a tier's name, "publisher"
    bool stale = false;        // its checkpoint has changed: dropped once nobody uses it
    bool leaving = false;      // dropped once its copies are made
    bool drop_waits = false;   // dropping, but a reader has it open: DropWeights comes after
    std::string drop_error;    // dropping, but it could not be: its bytes stay, it is tried again
    TimePoint drop_again;      // when; TimePoint::max() while it is being tried
    std::set<DeviceId> copied; // the tiers to which it was copied, or could not be
    TimePoint copy_after;      // no try before
    int copies_refused = 0;    // for want of room, in a row
    DeviceId made_on;          // of a copy: the device of the set that it was made from
    std::string file;          // of an image
};

// A lease of somebody who is not one of our instances, or of an instance on a further set.
struct Lease {
    LeaseId id{};
    WeightSetId set;
    DeviceId device;
    std::string holder;    // for people: "pid 123 (berth bench)", an instance's name
    InstanceName instance; // empty: a guest
};

// One run of berth-loader; or what an engine fills itself, to publish it or to keep it.
struct Load {
    LoadId id{};
    LoadKey key;
    ModelName model; // empty: by path
    enum class State {
        kPlanning, // validating; nothing is placed
        kLoading,  // Go was given
        kEnding,   // sealed or failed; the process has not ended
    } state = State::kPlanning;
    uint64_t weight_bytes = 0;   // planned
    uint64_t overhead_bytes = 0; // context and staging on the device
    bool placed = false;         // Go was given: its bytes count until its process has ended
    bool sealed = false;         // its weights count as a weight set
    std::string phase;
    uint64_t bytes_done = 0;
    uint64_t bytes_total = 0;
    TimePoint started_at;
    TimePoint progress_at;
    TimePoint placed_at;              // Go
    TimePoint told_at;                // the last event about its progress
    int64_t priority = 0;             // the most important of those who wait for it
    std::set<OperationId> operations; // that wait for it
    std::string holder;               // the engine that fills it; empty: berth-loader
    bool is_private = false;          // it stays that engine's own
    // Where its bytes come from: a tier, or the checkpoint (empty); of a copy run where the set is
    // read. A reader holds what it reads until its process has ended.
    DeviceId source;
    WeightSetId from;
    std::string file;                // of an image that it reads or writes
    std::set<DeviceId> failed_tiers; // not to be tried again for this
    DeviceId copy_to;                // the tier that it fills; empty: it loads
    DeviceId made_on;                // of a copy: the device of the set
};

} // namespace berth::node
