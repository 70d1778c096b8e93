// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "cache/checkpoint/dtype.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The table of a weight set: what lies where. A memfd that is sealed, passed beside the segments
// and read in place; opening one checks every entry against the segments' sizes once, and costs
// about a microsecond per hundred tensors.
namespace berth {

inline constexpr uint64_t kTensorAlignment = 256;
inline constexpr size_t kTensorRankMax = 8;

// XXH3-128 over the list of the XXH3-64 of each 64 KiB block.
struct Checksum {
    uint64_t low = 0;
    uint64_t high = 0;
    bool operator==(const Checksum&) const = default;
};

// `state` tensors are what an engine writes to while it runs (running means, counters): a set keeps
// their bytes as a template, and each attacher gets copies of its own.
enum class TensorKind : uint8_t { kWeight, kState };

struct TensorView {
    std::string_view name;
    DType dtype = DType::kOpaque;
    std::span<const uint64_t> shape;
    uint32_t segment = 0;
    uint64_t offset = 0; // bytes from the segment's start, a multiple of kTensorAlignment
    uint64_t bytes = 0;
    Checksum checksum;
    std::string_view alias_of; // the tensor whose bytes it shares, empty for most
    TensorKind kind = TensorKind::kWeight;
    // In elements, of tensors that are a view of their storage: offset and bytes are the storage's
    // then. No strides: dense, in the order of the shape.
    std::span<const uint64_t> strides;
    uint64_t storage_offset = 0;
    // From the segment's start to the tensor's first element.
    uint64_t first_byte() const { return offset + storage_offset * bits_of(dtype) / 8; }
};

// An input and the digest of what comes out, left by a set's publisher.
struct ManifestCanary {
    std::string_view input;  // any bytes, e.g. token ids as JSON
    std::string_view digest; // SHA-256, 64 digits; empty: the set has no canary
    explicit operator bool() const { return !digest.empty(); }
};

class Manifest {
  public:
    Manifest() = default;
    Manifest(Manifest&&) noexcept;
    Manifest& operator=(Manifest&&) noexcept;
    ~Manifest();

    // Maps and checks one. Corrupt with the entry's name when it is not what it must be.
    static Result<Manifest> open(const UniqueFd& fd, std::span<const uint64_t> segment_bytes);

    size_t size() const;
    TensorView at(size_t index) const; // by name, in ascending order
    // Index of a tensor, or -1.
    int64_t find(std::string_view name) const;
    std::string_view fingerprint_json() const; // the document
    std::string_view fingerprint() const;      // its SHA-256, 64 digits
    std::string_view config_json() const;      // the checkpoint's config.json as it was loaded
    uint64_t weight_bytes() const;             // sum over tensors that are no aliases
    ManifestCanary canary() const;
    bool has_states() const; // whether any tensor is of kind kState

  private:
    struct Mapped;
    std::unique_ptr<Mapped> mapped_;
};

// Collects entries and writes the sealed memfd.
struct ManifestEntry {
    std::string name;
    DType dtype = DType::kOpaque;
    std::vector<uint64_t> shape;
    uint32_t segment = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    Checksum checksum;
    std::string alias_of;
    TensorKind kind = TensorKind::kWeight;
    std::vector<uint64_t> strides{}; // as in TensorView; empty: dense
    uint64_t storage_offset = 0;
    bool part_of_storage = false; // offset and bytes are of more than itself
};
// Elements from the first to behind the last one of a strided tensor, 0 when it has none; nothing
// when that does not fit 64 bits or the lists differ in length. No strides: dense.
std::optional<uint64_t> extent_of(std::span<const uint64_t> shape,
                                  std::span<const uint64_t> strides);
struct ManifestParts {
    std::vector<ManifestEntry> entries;
    std::vector<uint64_t> segment_bytes;
    std::string fingerprint_json;
    std::string fingerprint;
    std::string config_json;
    std::string canary_input;
    std::string canary_digest; // empty: no canary
};
// The descriptor is a read-only reopening of the sealed memfd.
Result<UniqueFd> write_manifest(const ManifestParts& parts);
// The same for the bytes of one that was written before; they are not checked.
Result<UniqueFd> seal_manifest(std::string_view bytes);

Checksum checksum_of(std::span<const std::byte> bytes);

} // namespace berth
