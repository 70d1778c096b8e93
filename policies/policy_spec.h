// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/node_spec.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// kind: ColocationPolicy.
namespace berth::policies {

enum class PolicyMode { kEnforce, kObserve, kOff };
struct PriorityClass {
    std::string name;
    int64_t value = 0;           // higher = more important
    bool preempts_lower = false; // preemptionPolicy: PreemptLowerPriority (else Never)
    bool preemptible = true;
    bool global_default = false; // of instances that name no class; one at most
    Origin origin;
    bool operator==(const PriorityClass&) const = default;
};
enum class TriggerKind { kRequestArrival, kQueueDepth, kSloBurn, kSchedule };
struct Trigger {
    std::string class_name;
    TriggerKind on = TriggerKind::kRequestArrival;
    uint64_t above = 0;      // QueueDepth
    Nanoseconds for_time{0}; // QueueDepth
    std::string metric;      // SLOBurn: ttft | tpot
    double percentile = 99;  // SLOBurn
    Nanoseconds target{0};   // SLOBurn
    std::string cron;        // Schedule
    Origin origin;
    bool operator==(const Trigger&) const = default;
};
// The rungs of the preemption ladder that a policy or an operator may name, fastest first.
enum class Rung { kPause, kShrink, kOffload, kEvict };
enum class VictimOrder { kLowestPriority, kLargestReclaimable, kYoungestFirst };
enum class KvOnOffload { kAuto, kSave, kDrop };
struct DisruptionBudget {
    uint64_t preemptions_max = 12;
    Nanoseconds window = std::chrono::minutes(10);
    bool operator==(const DisruptionBudget&) const = default;
};
struct PreemptionSpec {
    std::vector<Rung> modes{Rung::kPause, Rung::kShrink, Rung::kOffload}; // in order
    bool fallback_evict = true;                                           // fallback: Evict | None
    Nanoseconds reclaim_deadline = std::chrono::seconds(1);
    Nanoseconds grace_period = std::chrono::milliseconds(200);
    Nanoseconds exempt_time = std::chrono::seconds(10);
    int64_t min_priority_delta = 10;
    std::vector<VictimOrder> victim_order{VictimOrder::kLowestPriority,
                                          VictimOrder::kLargestReclaimable,
                                          VictimOrder::kYoungestFirst};
    DisruptionBudget disruption_budget;
    KvOnOffload kv_on_offload = KvOnOffload::kAuto;
    bool operator==(const PreemptionSpec&) const = default;
};
enum class OnResumeFailure { kHold, kEvict };
struct ResumeSpec {
    Nanoseconds online_idle = std::chrono::seconds(2); // after.onlineIdle
    // Kept free beside what an automatic resume takes; absent ("auto"): 2Gi on a GPU, 0 on a host
    // device. An operator's resume ignores it.
    std::optional<uint64_t> memory_margin_bytes;
    bool verify_canary = true;
    Nanoseconds verify_timeout = std::chrono::seconds(30);
    OnResumeFailure on_failure = OnResumeFailure::kHold;
    bool operator==(const ResumeSpec&) const = default;
};
// What an engine does for which no shared set may be used.
enum class OnMismatch { kDisk, kFail };
// What follows when the checkpoint of a resident set has changed on disk.
enum class OnChange { kReload, kRefuse };
struct AttachSpec {
    // Whether an instance must reproduce the canary of a set that it attaches to, where its
    // publisher left one, before it is Ready.
    bool verify_canary = false;
    OnMismatch on_mismatch = OnMismatch::kFail; // Disk: it loads its own copy, if there is room
    OnChange on_change = OnChange::kReload;     // Reload: as a new set; the old one goes unused
    bool operator==(const AttachSpec&) const = default;
};
enum class Sharing { kGate, kTimeSlice, kMps };
struct SharingSpec {
    Sharing compute = Sharing::kGate;
    bool batch_share_by_slo = false; // batchShareWhenBusy: SLO
    double batch_share_when_busy = 0;
    bool operator==(const SharingSpec&) const = default;
};
enum class StarvationAction { kAlert, kBoostPriority };
struct StarvationSpec {
    Nanoseconds suspended_max = std::chrono::minutes(30);
    StarvationAction action = StarvationAction::kAlert;
    bool operator==(const StarvationSpec&) const = default;
};
struct MemorySpec {
    // Left free on each device; absent ("auto"): 4Gi on a GPU, 0 on a host device (itself a
    // budget).
    std::optional<uint64_t> device_reserve_bytes;
    uint64_t host_pinned_limit_bytes = 64ULL << 30;
    // Copies of weight sets below the devices, the least recently used leave first. 0, or no
    // folder: there are none.
    uint64_t host_tier_bytes = 0;   // hostTier: in host memory
    std::string image_dir;          // imageDir: as files in this folder,
    uint64_t image_limit_bytes = 0; // imageLimit: of all together
    bool operator==(const MemorySpec&) const = default;
};
// Among the devices that have room: Pack fills the fullest first, Spread takes the emptiest.
enum class PlacementStrategy { kPack, kSpread };
struct PlacementSpec {
    PlacementStrategy strategy = PlacementStrategy::kSpread;
    bool operator==(const PlacementSpec&) const = default;
};
struct TenantSpec {
    std::string name;
    std::vector<std::string> users;      // of the system
    std::vector<std::string> may_attach; // Model names; empty: none
    // maxDeviceMemory, of all its instances on all devices; 0: none is set.
    uint64_t device_memory_bytes_max = 0;
    Origin origin;
    Mark may_attach_mark, memory_mark;
    bool operator==(const TenantSpec&) const = default;
};
struct PolicySpec {
    std::string name = "node-default";
    PolicyMode mode = PolicyMode::kEnforce;
    std::vector<PriorityClass> classes; // never empty: online and batch when none are given
    std::vector<Trigger> triggers;
    PreemptionSpec preemption;
    ResumeSpec resume;
    AttachSpec attach;
    SharingSpec sharing;
    StarvationSpec starvation;
    MemorySpec memory;
    PlacementSpec placement;
    std::vector<TenantSpec> tenants;
    Origin origin;
    Mark reserve_mark; // of memory.deviceReserve
    const PriorityClass* find_class(std::string_view name) const;
    const TenantSpec* find_tenant(std::string_view name) const;
    const PriorityClass* default_class() const; // the globalDefault, else the lowest value
    bool operator==(const PolicySpec&) const = default;
};
// What holds when no ColocationPolicy is given: classes online (1000) and batch (100), the default.
PolicySpec default_policy();

} // namespace berth::policies
