// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "cache/weights/manifest.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// A mapped weight set. Tensors are base + offset; it stays valid as long as it lives, whatever
// happens to berthd or to the Client. Read-only. A process that attaches to the same set again
// shares the mapping: each segment is imported once.
class WeightSet {
  public:
    struct Mapped {
        std::shared_ptr<void> own; // first: let go when the rest has gone
        Manifest manifest;
        std::vector<Mapping> mappings;  // by segment; empty where there are states alone
        std::vector<Segment> templates; // by segment; empty where there are no states
    };
    const std::string& id() const { return id_; }
    const std::string& fingerprint() const { return fingerprint_; }
    const std::string& model_path() const { return model_path_; }
    const Manifest& manifest() const { return mapped_->manifest; }
    // The address of a tensor's first element; on cuda a device address. nullptr for states: they
    // are never mapped, Client::copy_states() gives private copies.
    const std::byte* address(const TensorView& tensor) const {
        return tensor.kind == TensorKind::kState
                   ? nullptr
                   : mapped_->mappings[tensor.segment].data() + tensor.first_byte();
    }
    // What the set's publisher left to be reproduced, if anything; Client::report_canary().
    ManifestCanary canary() const { return mapped_->manifest.canary(); }
    // Whether the policy wants it reproduced before Ready.
    bool verify_canary() const { return verify_canary_; }
    // Not empty: not shared, and why ("DaemonAbsent", "FingerprintMismatch", "ModeOff").
    const std::string& private_reason() const { return private_reason_; }
    // Sealed segments with states, by segment; empty ones in between.
    const std::vector<Segment>& templates() const { return mapped_->templates; }
    // NotFound with the nearest known name.
    Result<TensorView> find(std::string_view name) const;

  private:
    friend class Client;
    std::string id_, fingerprint_, model_path_, private_reason_;
    bool verify_canary_ = false;
    std::shared_ptr<void> lease_; // of a shared one: goes after the mapping
    std::shared_ptr<const Mapped> mapped_;
};

} // namespace berth
