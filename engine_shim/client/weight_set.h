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
        Manifest manifest;
        std::vector<Mapping> mappings; // by segment
    };
    const std::string& id() const { return id_; }
    const std::string& fingerprint() const { return fingerprint_; }
    const std::string& model_path() const { return model_path_; }
    const Manifest& manifest() const { return mapped_->manifest; }
    // The address of a tensor's first byte; on cuda a device address.
    const std::byte* address(const TensorView& tensor) const {
        return mapped_->mappings[tensor.segment].data() + tensor.offset;
    }
    // NotFound with the nearest known name.
    Result<TensorView> find(std::string_view name) const;

  private:
    friend class Client;
    std::string id_, fingerprint_, model_path_;
    std::shared_ptr<const Mapped> mapped_;
};

} // namespace berth
