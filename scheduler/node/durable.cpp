// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/durable.h"

namespace berth::node {

namespace {

constexpr std::string_view kLostSuffix = ".lost";

} // namespace

InstanceRecovered durable(const Instance& i) {
    InstanceRecovered kept;
    kept.name = i.name;
    kept.state = i.state;
    kept.desired = i.desired;
    kept.held_by = i.held_by;
    kept.reason = i.reason;
    kept.message = i.message;
    kept.devices = i.devices;
    kept.weights = i.weights;
    kept.ranks = i.ranks;
    kept.process = i.process;
    kept.others = i.others;
    kept.token_sha256 = i.token_sha256;
    kept.process_digest = i.process_digest;
    kept.endpoint = i.endpoint;
    kept.grant_bytes = i.grant_bytes;
    kept.grant_bytes_resume = i.grant_bytes_resume;
    kept.grant_bytes_next = i.grant_bytes_next;
    kept.shrunk_by = i.shrunk_by;
    kept.came_from = i.came_from;
    kept.overhead_bytes = i.overhead_bytes;
    kept.host_bytes = i.host_bytes;
    kept.starts = i.starts;
    kept.restarts = i.restarts;
    kept.phases = i.phases;
    kept.on_hold = i.on_hold;
    kept.service = i.service;
    kept.stands_by = i.stands_by;
    kept.generation = i.generation;
    kept.journals = i.journals;
    kept.requests_digest = i.requests_digest;
    kept.start_took = i.start_took;
    kept.waiting_since = i.waiting_since;
    kept.disruptions = i.disruptions;
    return kept;
}

Rollout durable(const Rollout& rollout) {
    Rollout kept = rollout;
    kept.said = policies::InstanceSpec();
    kept.standby.reset();
    kept.retry.reset();
    return kept;
}

WeightsAdopted durable(const WeightSet& set) {
    WeightsAdopted kept;
    kept.id = set.id;
    kept.fingerprint = set.fingerprint;
    kept.device = set.device;
    kept.bytes = set.bytes;
    kept.pinned = set.pinned;
    kept.source = set.source;
    kept.made_on = set.made_on;
    kept.file = set.file;
    if (!set.models.empty())
        kept.model = *set.models.begin();
    if (!set.keys.empty()) {
        kept.path = set.keys.begin()->path;
        kept.dtype = set.keys.begin()->dtype;
        kept.quantization = set.keys.begin()->quantization;
        kept.rank = set.keys.begin()->rank;
        kept.ranks = set.keys.begin()->ranks;
    }
    return kept;
}

WeightSetId lost_id(const WeightSetId& set) {
    return is_lost(set) ? set : WeightSetId(set.value + std::string(kLostSuffix));
}

bool is_lost(const WeightSetId& set) {
    return set.value.ends_with(kLostSuffix);
}

} // namespace berth::node
