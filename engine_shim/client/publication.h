// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/client/weight_set.h"
#include "engine_shim/protocol/messages.h"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// How an engine with a loading pipeline of its own makes a weight set: it declares every tensor,
// gets a place for each in segments that nobody else can see yet, fills them and seals. Whoever
// publishes the same inputs later attaches to exactly these bytes.
namespace berth {

class Client;

struct PublishTensor {
    std::string name;
    DType dtype = DType::kOpaque;
    std::vector<uint64_t> shape;
    std::vector<uint64_t> strides; // in elements; empty: dense, in the order of the shape
    uint64_t storage_offset = 0;   // in elements
    std::string alias_of;          // the tensor in whose storage it lies, itself no alias
    TensorKind kind = TensorKind::kWeight;
    uint64_t opaque_bytes = 0; // of a storage whose elements have no known size
};

// The fingerprint is made of the producer, the inputs, the model, the files of `path` by size and
// time, and the device's environment; never of the bytes that come out.
struct PublishRequest {
    std::string model; // a name, for people and for the fingerprint
    std::string path;  // a file or folder that it is made from; empty: all is in the inputs
    std::string producer_name, producer_version, producer_recipe;
    std::string inputs_json = "{}"; // an object: whatever else decides about the bytes
    std::string config_json;        // for attachers; no part of the fingerprint
    std::vector<PublishTensor> tensors;
    bool find_only = false; // NotFound, naming what differs from the nearest set, instead of a
                            // publication
    protocol::Environment environment; // empty fields are filled from the device
};

// A set that is being made. Dropped before it is sealed, nothing is left of it; nor when this
// process ends. The client outlives it. Calls may come from any thread, one at a time; they block
// on the device.
class Publication {
  public:
    Publication(const Publication&) = delete;
    Publication& operator=(const Publication&) = delete;
    ~Publication(); // gives up what was not sealed

    const std::string& weight_set() const;
    const std::string& fingerprint() const;
    // Where a tensor's storage lies, to be filled by the caller (on a GPU: by kernels and copies
    // that are done before seal()). NotFound for what was not declared; an alias has its target's.
    Result<std::span<std::byte>> storage(const std::string& name);
    // It was filled through its address. seal() refuses as long as one was not.
    Status filled(const std::string& name);
    // Copies host bytes into a tensor's storage; all of it at once also counts as filled().
    Status write(const std::string& name, uint64_t offset, std::span<const std::byte> bytes);
    // An input, and the SHA-256 (64 digits) of what this engine makes of it.
    Status set_canary(std::string input, std::string digest);
    // Checksums, seals and hands over; returns the set, mapped read-only, once the keeper has it.
    // After a failure nothing is left of it.
    Result<WeightSet> seal();

  private:
    friend class Client;
    struct State;
    explicit Publication(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

// Exactly one of the two.
struct PublishOutcome {
    std::unique_ptr<Publication> publication; // fill it and seal
    std::optional<WeightSet> resident;        // somebody else has made it
};

} // namespace berth
