// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/ledger.h"

#include <map>
#include <optional>
#include <string_view>
#include <vector>

// The planner's view of the node during one pass: each device's figures, computed once, and brought
// up to date for a device after something was begun there. It points into the state, which outlives
// it.
namespace berth::node {

class Board {
  public:
    explicit Board(NodeState& state);

    struct Row {
        const Device* device = nullptr;
        uint64_t total_bytes = 0;
        uint64_t reserve_bytes = 0;
        uint64_t overhead_bytes = 0; // of one more process
        uint64_t free_bytes = 0;
        uint64_t coming_bytes = 0; // being freed
        std::vector<Instance*> instances;
        // What could come free at the very most: weight sets that are not pinned, and the bytes of
        // those who may be preempted, by their rank.
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
    // What a model's weights cost on a row's device.
    struct Weights {
        bool resident = false;
        bool loading = false;      // their bytes count already
        uint64_t weight_bytes = 0; // to be loaded, as far as it is known
        uint64_t loader_bytes = 0; // its overhead, while it loads
        int distance = 0; // from the device: 0 resident, being loaded, host memory, image, disk
    };

    std::vector<Row>& rows() { return rows_; } // by device id
    const std::vector<Row>& rows() const { return rows_; }
    Row* find(const DeviceId& device);
    void refresh(const DeviceId& device);

    const policies::ModelSpec* model_of(const Instance& i) const;
    // `row` is one of rows(), `model` one of the documents'.
    const Weights& weights(const policies::ModelSpec& model, const Row& row);
    // Whether `needed` bytes could be had at all by who may preempt those of rank `below` or less.
    static bool could_have(const Row& row, uint64_t needed, std::optional<int64_t> below);
    // Whether anybody there, or a guest, has mapped the set.
    bool is_leased(const Row& row, const WeightSet& set) const;
    // What must be free there for it to be started: its weights while they are loaded, then its
    // process.
    uint64_t need_bytes(const Instance& i, const Row& row);
    static bool is_candidate(const Instance& i, const Row& row); // by its own list of devices
    // What it will need where, while it waits: all its candidates keep room for it.
    struct Claim {
        size_t row;
        uint64_t bytes;
    };
    std::vector<Claim> claims_of(const Instance& i);
    // It has been given a device: the figures there have changed.
    void placed(Instance& i);
    // Of one who waits and cannot be served now: its claim may be used by those who would give way.
    void lend(const Instance& i) { lent_ = &i; }
    bool is_lent(const Instance& i) const { return lent_ == &i; }
    // Grows with each change of the figures.
    uint64_t changes() const { return changes_; }

  private:
    void compute(Row& row);

    NodeState& state_;
    const Instance* lent_ = nullptr;
    uint64_t changes_ = 0;
    std::vector<Row> rows_;
    std::map<std::string_view, const policies::ModelSpec*> models_;
    std::vector<std::optional<Weights>> weights_; // of model m on row r: [m * rows + r]
};

// The rank of an instance: its class's value, or more while it starves and the policy boosts it.
int64_t effective_priority(const NodeState& state, const Instance& i);
// The bytes of its weight set if nobody else holds it and it may be dropped then, else 0.
uint64_t sole_weights_bytes(const NodeState& state, const Instance& i, const DeviceId& device);
// What comes free of it on each of its devices once what is under way on it is done.
uint64_t leaving_bytes(const NodeState& state, const Instance& i, const DeviceId& device);
// Waits for a device: Pending, Loading, or Evicted to come back.
bool waits_for_room(const Instance& i);

} // namespace berth::node
