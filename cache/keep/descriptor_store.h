// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <string>
#include <vector>

namespace berth {

// One entry as a store lists it: `meta` is a JSON object, `fds` how many descriptors go with it.
struct KeeperEntry {
    std::string key;
    std::string meta;
    size_t fds = 0;
};

struct KeptEntry {
    std::string key;
    std::string meta;
    std::vector<UniqueFd> fds;
};

struct KeeperInfo {
    int pid = 0; // of berth-keeper; 0 where the service manager keeps
    size_t entries = 0;
    size_t descriptors = 0;
    std::string version;
};

// Who keeps duplicates of berthd's descriptors, so that berthd may die: berth-keeper (KeeperClient)
// or systemd (SystemdStore). Every call blocks up to a timeout: on a worker thread, one at a time.
class DescriptorStore {
  public:
    virtual ~DescriptorStore() = default;

    // When it returns the store holds duplicates: the caller's descriptors may be closed. An
    // existing key is replaced.
    virtual Status put(const std::string& key, const std::string& meta,
                       const std::vector<int>& fds) = 0;
    virtual Result<KeptEntry> get(const std::string& key) = 0;
    virtual Result<std::vector<KeeperEntry>> list() = 0;
    // NotFound when there is no such key.
    virtual Status drop(const std::string& key) = 0;
    virtual Result<KeeperInfo> ping() = 0;

  protected:
    DescriptorStore() = default;
    DescriptorStore(const DescriptorStore&) = default;
    DescriptorStore(DescriptorStore&&) = default;
    DescriptorStore& operator=(const DescriptorStore&) = default;
    DescriptorStore& operator=(DescriptorStore&&) = default;
};

} // namespace berth
