// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/weights/manifest.h"
#include "engine_shim/client/publication.h"

#include <map>
#include <string>
#include <vector>

// What a publication will be, before a byte of it exists. Pure, but for the sizes and times of
// files that a fingerprint is made of.
namespace berth {

// Where the bytes of a tensor, and of those that alias it, lie.
struct PlannedStorage {
    uint32_t segment = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

struct PublishPlan {
    ManifestParts parts; // checksums and canary are still to come
    std::map<std::string, PlannedStorage, std::less<>> storages; // of tensors that are no aliases
    std::map<std::string, std::string, std::less<>> owner;       // every tensor -> its storage's
};

// Weights into one segment, states into another, storages each at a multiple of kTensorAlignment,
// segments in whole granules. Refused by name: doubles, aliases that lead nowhere or to an alias or
// to another kind, strides that do not fit, elements without a known size that are not dense.
Result<PublishPlan> plan_publication(const PublishRequest& request, uint64_t granularity_bytes);

// The document and its SHA-256.
struct PublishFingerprint {
    std::string document;
    std::string sha256;
};
Result<PublishFingerprint> publish_fingerprint(const PublishRequest& request,
                                               const protocol::Environment& environment);

// The first thing in which a set that somebody else has published under the same fingerprint
// differs from what was declared; empty: nothing.
std::string declared_difference(const ManifestParts& declared, const Manifest& found);

} // namespace berth
