// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"

#include <string>
#include <vector>

// The memory ledger. It is computed from the state, never kept beside it, so the two cannot
// disagree.
namespace berth::node {

// What a process on a GPU is charged beside its grant: a bare context takes about 527 MiB, kernels
// and the libraries' own work space 200 MiB more (measured on an H200 with libtorch 2.11).
inline constexpr uint64_t kCudaOverheadBytes = 1ULL << 30;
inline constexpr uint64_t kCudaReserveBytes = 4ULL << 30; // deviceReserve: auto
inline constexpr uint64_t kCudaMarginBytes = 2ULL << 30;  // memoryMargin: auto
inline constexpr uint64_t kGrantBytesMin = 64ULL << 20;   // the least that is worth a start

// One owner of bytes on a device.
struct LedgerLine {
    enum class Kind { kWeights, kGrant, kOverhead, kLoader } kind = Kind::kGrant;
    std::string owner; // a set's id, an instance's name, "load-7"
    uint64_t bytes = 0;
    GrantState grant_state = GrantState::kNone; // grants
    bool reclaimable = false; // unpinned weights without a lease, grants of preemptible instances
};

struct DeviceUsage {
    uint64_t total_bytes = 0;
    uint64_t reserve_bytes = 0;
    uint64_t weight_bytes = 0;
    uint64_t grant_bytes = 0;       // all grants, of which:
    uint64_t reserved_bytes = 0;    //   for starts and resumes under way
    uint64_t unconfirmed_bytes = 0; //   of engines that are not connected
    uint64_t overhead_bytes = 0;
    uint64_t loader_bytes = 0;
    uint64_t reclaimable_bytes = 0;
    uint64_t free_bytes = 0; // total less all of these and the reserve, at least 0
    std::vector<LedgerLine> lines;
    uint64_t used_bytes() const {
        return weight_bytes + grant_bytes + overhead_bytes + loader_bytes;
    }
};
DeviceUsage usage(const NodeState& state, const DeviceId& device);
// What a refusal for want of room says behind what was needed: what is free of what, what is kept
// in reserve, and whose bytes could come free.
std::string room_words(const NodeState& state, const DeviceId& device, uint64_t available);

// What a load takes on its device now: staging and context, and weights that are not sealed yet.
uint64_t placed_bytes(const Load& load);

// The set that answers a load, if it is resident (and not being dropped).
const WeightSet* resident(const NodeState& state, const LoadKey& key);
const WeightSet* find_set(const NodeState& state, const WeightSetId& set, const DeviceId& device);
bool is_load_of(const policies::ModelSpec& model, const LoadKey& key); // of whatever rank and place
// The key of a model on a device, or of a rank's part of it.
LoadKey load_key(const policies::ModelSpec& model, const DeviceId& device, uint32_t rank = 0);
// The key that a published set goes by. No path or Model leads to it: an engine asks by its id.
LoadKey published_key(const WeightSetId& set, const DeviceId& device);
bool is_published(const LoadKey& key);
// Names of those who hold it: instances whose process lives, guests.
std::vector<std::string> lease_holders(const NodeState& state, const WeightSet& set);

// The least grant with which an instance is started, and the overhead of its process.
uint64_t grant_bytes_min(const policies::InstanceSpec& spec);
uint64_t grant_bytes_min(const Instance& instance); // less for one that stands by
uint64_t grant_bytes_max(const policies::InstanceSpec& spec);
uint64_t grant_bytes_whole(uint64_t bytes); // down to whole steps, the same for both backends
// Kept free on a device by the policy.
uint64_t reserve_bytes(const NodeState& state, const Device& device);
uint64_t process_overhead_bytes(const NodeState& state, const DeviceId& device);
// What policies may count: whether the class may be preempted.
bool preemptible(const NodeState& state, const Instance& instance);

} // namespace berth::node
