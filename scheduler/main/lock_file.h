// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <string>

namespace berth {

// One berthd per node: the lock lives as long as this object, and no longer than the process.
class LockFile {
  public:
    // AlreadyExists, naming the pid of the one that runs.
    static Result<LockFile> take(const std::string& path);

  private:
    UniqueFd fd_;
};

} // namespace berth
