// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/load.h"
#include "cache/load/phase_clock.h"
#include "cache/load/stream.h"
#include "cache/memory/device.h"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// A weight set while it is made from one that exists: segments of the same sizes, filled by others,
// compared with the manifest's checksums where they lie, sealed, and given the same manifest. One
// thread; the device outlives it. Dropping it frees the segments.
class SetFiller {
  public:
    static Result<SetFiller> open(Device& device, std::span<const uint64_t> segment_bytes);

    std::byte* segment(size_t index) const { return segments_[index]->data(); }
    std::vector<RankTarget> targets() const; // a segment each
    // All bytes are in place. Corrupt, with the reason ChecksumMismatch, when a tensor's are not
    // those of its checksum; `origin`, where they came from, and the tensor are named.
    Result<LoadedSet> finish(const UniqueFd& manifest, std::string_view origin);

  private:
    Device* device_ = nullptr;
    std::vector<std::unique_ptr<WritableSegment>> segments_;
    PhaseClock clock_;
    std::map<std::string, double> phases_;
};

// That error.
tl::unexpected<Error> checksum_mismatch(std::string_view origin,
                                        const std::vector<std::string>& different,
                                        std::string_view remedy);

// A set whose segments lie in files, byte for byte.
struct FiledSegment {
    size_t file = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};
struct FiledSet {
    std::string origin;                // for people
    std::vector<CheckpointFile> files; // as they were when they were looked at
    std::vector<FiledSegment> segments;
    const UniqueFd& manifest;
};
// Through the same threads, ring and lanes as a checkpoint. Blocks; the device is used by the
// calling thread alone.
Result<LoadedSet> load_filed_set(const FiledSet& set, Device& device, int threads,
                                 ReaderOptions reader, const StreamProgress& progress);
LoadCost cost_of_filed_set(std::span<const uint64_t> segment_bytes, DeviceKind kind, int threads);

} // namespace berth
