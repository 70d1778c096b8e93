// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/ledger.h"

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

// The planner's view of the node during one pass: each device's figures, computed once, and brought
// up to date for a device after something was begun there. It points into the state, which outlives
// it.
namespace berth::node {

class Board {
  public:
    explicit Board(NodeState& state);

    // A weight set on a device.
    struct Resident {
        const WeightSet* set = nullptr;
        bool leased = false;        // somebody there, or a guest, has mapped it
        std::vector<size_t> models; // it answers them, or a rank of them, by their place in the
                                    // documents
    };
    struct Row {
        const Device* device = nullptr;
        uint64_t total_bytes = 0;
        uint64_t reserve_bytes = 0;
        uint64_t overhead_bytes = 0; // of one more process
        uint64_t free_bytes = 0;
        uint64_t coming_bytes = 0; // being freed
        std::vector<Instance*> instances;
        std::vector<Resident> sets; // by id
        std::vector<const Load*> loads;
        // What could come free at the very most: weight sets that nobody uses or pins, and, from
        // those who may be preempted, their own bytes, by rank, and the sets that they leave.
        uint64_t idle_bytes = 0;
        uint64_t droppable_bytes = 0;
        std::vector<std::pair<int64_t, uint64_t>> preemptible_bytes;
        // What those who wait will need there: before the instance that is looked at, and after it.
        uint64_t claimed_before_bytes = 0;
        uint64_t claimed_after_bytes = 0;
        // Part of claimed_before: of those who cannot get it now whatever gives way. Who would give
        // way to them may use it meanwhile.
        uint64_t lent_bytes = 0;

        uint64_t most_bytes() const { // that anybody can ever have
            return total_bytes > reserve_bytes ? total_bytes - reserve_bytes : 0;
        }
    };
    // What a model's weights, or a rank's part of them, cost on a row's device.
    struct Weights {
        bool resident = false;
        bool loading = false;      // their bytes count already
        uint64_t weight_bytes = 0; // to be loaded, as far as it is known
        uint64_t loader_bytes = 0; // its overhead, while it loads
        int distance = 0; // from the device: 0 resident, being loaded, host memory, image, disk
        uint32_t first_rank = 0;
    };
    static constexpr int kFarthest = 4;

    std::vector<Row>& rows() { return rows_; } // by device id
    const std::vector<Row>& rows() const { return rows_; }
    Row* find(const DeviceId& device);
    void refresh(const DeviceId& device);

    const policies::ModelSpec* model_of(const Instance& i) const;
    // Of an instance that has a model, on one of rows(): what it needs there at the least. Of
    // several ranks any could be placed there, with their parts: the nearest of `open` are (empty:
    // of all; by their first ranks).
    Weights weights(const Instance& i, const Row& row, const std::vector<uint32_t>& open = {});
    // The same for as many ranks as it has on a device, from `first` on.
    Weights part(const Instance& i, const Row& row, uint32_t first);
    // Whether `needed` bytes could be had at all by who may preempt those of rank `below` or less.
    static bool could_have(const Row& row, uint64_t needed, std::optional<int64_t> below);
    // Who waits for those weights, or to be resumed on them, in the order in which they are served.
    // Some of them may have been served in this pass.
    const std::vector<Instance*>& waiters(size_t model) const { return waiters_.at(model); }
    // The bytes of its weight sets there that nobody else holds or waits for, and that may be
    // dropped once the instance has left them.
    uint64_t sole_weights_bytes(const Instance& i, const Row& row) const;
    // What must be free there for it to be started: its weights while they are loaded, then its
    // process.
    uint64_t need_bytes(const Instance& i, const Row& row);
    uint64_t need_bytes(const Instance& i, const Row& row, const Weights& here) const;
    static bool is_candidate(const Instance& i, const Row& row); // by its own list of devices
    // What it will need where, while it waits: all its candidates keep room for it.
    struct Claim {
        size_t row;
        uint64_t bytes;
    };
    std::vector<Claim> claims_of(const Instance& i);
    // What those who wait and come before the taker (or after it) will need there.
    uint64_t spoken_for(const Row& row, const Instance& taker, bool by_lower);
    // It has been given a device: the figures there have changed.
    void placed(Instance& i);
    // Of one who waits and cannot be served now: its claim may be used by those who would give way.
    void lend(const Instance& i) { lent_ = &i; }
    bool is_lent(const Instance& i) const { return lent_ == &i; }
    // Grows with each change of the figures.
    uint64_t changes() const { return changes_; }

  private:
    void compute(Row& row);
    const std::vector<Weights>& parts(const policies::ModelSpec& model, const Row& row); // by rank
    Weights weights_of(const policies::ModelSpec& model, const Row& row, uint32_t rank) const;
    bool is_sole(const Instance& i, const Row& row, const Resident& here) const;
    uint64_t leaving_bytes(const Instance& i, const Row& row) const;
    std::optional<size_t> model_index(const Instance& i) const;
    std::optional<uint64_t> claim_on(const Instance& i, const Row& row);

    NodeState& state_;
    const Instance* lent_ = nullptr;
    uint64_t changes_ = 0;
    std::vector<Row> rows_;
    std::unordered_map<std::string_view, size_t> models_;               // by name
    std::unordered_map<std::string_view, std::vector<size_t>> by_path_; // models
    std::vector<std::vector<Instance*>> waiters_;                       // by model
    std::vector<Instance*> modelless_waiters_;
    std::vector<std::vector<Weights>> weights_; // of model m on row r: [m * rows + r]; by rank
};

// The rank of an instance: its class's value, or more while it starves and the policy boosts it.
int64_t effective_priority(const NodeState& state, const Instance& i);
// Waits for a device: Pending, Loading, or Evicted to come back.
bool waits_for_room(const Instance& i);
// Whether it keeps room for itself: it waits for a device, or to be resumed on its own.
bool waits(const Instance& i);
// Who is served first: the more important, then the one that came first, whatever happened to it.
bool comes_before(const NodeState& state, const Instance& a, const Instance& b);

} // namespace berth::node
