// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/client.h"
#include "engine_shim/client/client_state.h"
#include "engine_shim/client/publish_plan.h"

#include <set>

namespace berth {

// What a Publication is made of. The client outlives it.
struct Publication::State {
    State(Client& owner, Client::State& its_state, Device& its_device)
        : client(owner), link(its_state), device(its_device) {}

    Client& client;
    Client::State& link;
    Device& device;
    PublishPlan plan;
    protocol::Publish asked;
    std::string id;              // the weight set's
    HeldMemory::Ticket held = 0; // of the segments
    bool others = false;         // sealed: the set is one that somebody else has made
    std::vector<std::unique_ptr<WritableSegment>> segments;
    std::set<std::string, std::less<>> filled; // storages, by their owner's name
    bool sealed = false;                       // or given up: nothing is left to be given back

    Result<const PlannedStorage*> find(const std::string& name) const;
    std::byte* address(const PlannedStorage& storage) const {
        return segments[storage.segment]->data() + storage.offset;
    }
    Status create_segments();
    Status check_filled() const;
    Status compute_checksums();
    Result<std::vector<Segment>> seal_segments();
    Result<WeightSet> hand_over(const UniqueFd& manifest, const std::vector<Segment>& sealed_ones,
                                protocol::Phases phases);
    void give_up();
};

} // namespace berth
