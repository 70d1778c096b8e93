// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace berth {

// One weight set that is resident on one device, with the descriptors that keep it there.
struct ResidentSet {
    std::string id;               // the first 16 digits of the fingerprint's SHA-256
    std::string fingerprint;      // the SHA-256
    std::string fingerprint_json; // the document
    std::string model;            // the Model's name when it was loaded
    std::string path;             // its checkpoint's folder
    std::string device;           // "host-0", "GPU-..."
    UniqueFd manifest;
    std::vector<Segment> segments;
    uint64_t tensors = 0;
    bool pinned = false;
    int64_t loaded_at_ms = 0;             // Unix time
    uint64_t bytes_read = 0;              // from disk, by the load that made it
    std::map<std::string, double> phases; // of that load: name -> milliseconds

    uint64_t bytes() const;
    // What the keeper files it under: "set/<id>@<device>".
    std::string key() const;
    // The manifest's, then the segments', in order: how they travel.
    std::vector<int> descriptors() const;
};

// All that is resident on this node. Owned by berthd's decision thread; plain memory, no I/O. What
// find() and its like return stays valid until that set is removed.
class Catalogue {
  public:
    // AlreadyExists when that set is on that device: the newcomer's descriptors are closed.
    Status add(ResidentSet set);
    // Takes it out; dropping what is returned closes its descriptors, which frees the memory once
    // no engine maps it and the keeper has let go. NotFound when there is none.
    Result<ResidentSet> remove(std::string_view id, std::string_view device);

    // An empty device means any.
    ResidentSet* find(std::string_view id, std::string_view device = {});
    ResidentSet* find_by_fingerprint(std::string_view fingerprint, std::string_view device = {});
    // The newest set of that model (by name, or by its checkpoint's folder) on that device.
    ResidentSet* find_by_model(std::string_view model, std::string_view device = {});
    // For telling somebody why nothing fits: of the sets of that model or, if there are none, of
    // that folder, the one whose fingerprint document has the fewest fields that differ from
    // `fingerprint_json`. nullptr when there is none.
    const ResidentSet* nearest(std::string_view model, std::string_view path,
                               std::string_view fingerprint_json) const;

    std::vector<const ResidentSet*> all() const; // by id, then device
    size_t size() const { return sets_.size(); }
    uint64_t bytes_on(std::string_view device) const;

  private:
    std::map<std::pair<std::string, std::string>, ResidentSet> sets_;
};

// A set as the keeper holds it, and back, so that a new berthd knows all from the keeper alone.
std::string keeper_meta_of(const ResidentSet& set);
// Whether a key is a weight set's (the keeper holds gate pages too).
bool is_resident_set_key(std::string_view key);
// Corrupt when the number of descriptors is not what the meta says, or a field is missing.
Result<ResidentSet> resident_set_from(std::string_view key, std::string_view meta,
                                      std::vector<UniqueFd> fds);

} // namespace berth
