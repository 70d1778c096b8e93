// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/inherited.h"
#include "base/unique_fd.h"
#include "base/units.h"

#include <string>
#include <string_view>
#include <vector>

namespace berth {

// The line to the service manager that started this process: sd_notify(3) and sd_listen_fds(3).
// tell() and barrier() may be called on any thread and block up to the timeout when the manager
// does not read.
class ServiceManager {
  public:
    // Reads and unsets what concerns it, so that no child takes it for its own. Call it once,
    // before threads run. Without NOTIFY_SOCKET it is empty, and what it is told goes nowhere.
    static Result<ServiceManager> from_environment();

    explicit operator bool() const { return static_cast<bool>(socket_); }

    // "READY=1", "FDSTORE=1\nFDNAME=..." with descriptors, ...
    Status tell(const std::string& lines, const std::vector<int>& fds = {}) const;
    // Returns when the manager has dealt with all that it was told before.
    Status barrier() const;

    // From $LISTEN_FDS; each is handed out once.
    std::vector<InheritedFd> take_inherited() { return std::move(inherited_); }
    // FileDescriptorStoreMax, which newer managers say; 0: not known.
    size_t descriptors_max() const { return descriptors_max_; }

  private:
    UniqueFd socket_;
    std::string address_;
    std::vector<InheritedFd> inherited_;
    size_t descriptors_max_ = 0;
};

} // namespace berth
