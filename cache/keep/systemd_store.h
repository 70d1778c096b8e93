// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/keep/descriptor_store.h"
#include "cache/keep/service_manager.h"

#include <map>
#include <memory>

namespace berth {

// The service manager's descriptor store (FileDescriptorStoreMax=) as the keeper. An entry of m - 1
// descriptors is m stored ones, "<n>-of-<m>.<key>": number 0 is a sealed memfd with the meta. The
// manager gives them back only when it starts the next process, so that get() answers once a key.
//
// Not thread-safe; blocks up to the manager's timeout in each call.
class SystemdStore final : public DescriptorStore {
  public:
    // Takes what the manager handed over. What is no whole entry is dropped with a warning.
    static Result<std::unique_ptr<SystemdStore>> open(std::shared_ptr<ServiceManager> manager);

    // Returns after the manager's acknowledgement.
    Status put(const std::string& key, const std::string& meta,
               const std::vector<int>& fds) override;
    Result<KeptEntry> get(const std::string& key) override;
    Result<std::vector<KeeperEntry>> list() override;
    Status drop(const std::string& key) override;
    Result<KeeperInfo> ping() override;

    // The stored name, and what it says; an error for a key that is too long, nothing for a name
    // that this class did not make.
    struct Name {
        size_t number = 0;
        size_t count = 0; // the meta's included
        std::string key;
    };
    static Result<std::string> name_of(const Name& name);
    static bool parse_name(std::string_view text, Name& name);

  private:
    struct Entry {
        std::string meta;
        size_t count = 0; // of stored descriptors, the meta's included
        std::vector<UniqueFd> found;
    };
    using Found = std::map<std::string, std::vector<InheritedFd>>;

    explicit SystemdStore(std::shared_ptr<ServiceManager> manager) : manager_(std::move(manager)) {}
    Status adopt(const std::string& key, std::vector<InheritedFd> fds);
    Status remove_names(const std::string& key, size_t count);
    size_t descriptors() const;

    std::shared_ptr<ServiceManager> manager_;
    std::map<std::string, Entry> entries_;
};

} // namespace berth
