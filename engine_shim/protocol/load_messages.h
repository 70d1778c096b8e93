// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Messages about filling memory: a loader's, and those of an engine that publishes or loads for
// itself. What holds for all messages is said in messages.h.
namespace berth::protocol {

using Phases = std::map<std::string, double>; // name of a phase -> milliseconds

// Loader -> berthd, after validation and before the first byte moves.
struct Planned {
    uint64_t id = 0;
    std::string fingerprint_json; // the document
    std::string fingerprint;      // its SHA-256
    std::vector<uint64_t> segment_bytes;
    uint64_t host_staging_bytes = 0;
    uint64_t device_overhead_bytes = 0; // context and staging on the device
    uint64_t tensors = 0;
};
// berthd -> loader: there is room, go; or Failed.
struct Go {
    uint64_t id = 0;
};
// Loader -> berthd; fds: manifest, segments.
struct Sealed {
    uint64_t id = 0;
    std::string fingerprint;
    std::vector<uint64_t> segment_bytes;
    uint64_t bytes_read = 0;
    Phases phases;
};
// berthd -> loader: the keeper has the descriptors; the loader may exit.
struct Kept {
    uint64_t id = 0;
};

// Publishing, on an engine's session: publish -> go | failed; then the engine fills its segments
// and says sealed (fds: manifest, segments) -> attached (fds: the same), once the keeper has them,
// with a lease. AlreadyExists with the reason AlreadyPublished or BeingPublished: attach by weight
// set instead. A publication ends with its process, or by release; one that outlives a connection
// is said again on the next (`held`), and then has its bytes whatever the ledger says.
struct Publish {
    uint64_t id = 0;
    std::string device;
    std::string model; // for people
    std::string path;  // what it was made from, if that is on disk
    std::string fingerprint_json;
    std::string fingerprint;
    std::vector<uint64_t> segment_bytes;
    uint64_t tensors = 0;
    bool find_only = false; // NotFound, with the nearest set's differences, instead of go
    bool held = false;
};
// Weights that an engine is about to load for itself, outside every shared set -> go | failed. Its
// bytes are charged until its process has ended, or release; its loader's overhead until it says
// there that it holds them (`held`, overhead 0). `shared`: one who is back has a set mapped.
struct PrivateLoad {
    uint64_t id = 0;
    std::string device;
    std::string fingerprint;
    std::vector<uint64_t> segment_bytes;
    uint64_t device_overhead_bytes = 0;
    std::string reason, message; // why not the shared set: CamelCase; each field that differs
    bool held = false, shared = false;
};
// Engine -> berthd: this process no longer holds the segments of that publication or private load.
struct Release {
    uint64_t id = 0;
    std::string fingerprint;
};
// Engine -> berthd: what the canary of a set gave here.
struct Canary {
    uint64_t id = 0;
    std::string weight_set;
    std::string digest; // SHA-256 of the output, 64 digits
};

} // namespace berth::protocol
