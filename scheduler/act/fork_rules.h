// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace berth {

// Which file that is, and whether it is still the same.
struct FileIdentity {
    uint64_t device = 0;
    uint64_t inode = 0;
    uint64_t bytes = 0;
    int64_t modified_ns = 0;
    bool operator==(const FileIdentity&) const = default;
};
Result<FileIdentity> identity_of(const std::string& path);

// Why a start cannot be a fork of a zygote that has this environment ("NAME=TEXT" each), whatever
// the zygote's state: another user, descriptors, words that do not fit, or a variable that the
// libraries have read already. Nothing when it can.
std::optional<std::string> why_not_forked(const SpawnOptions& options,
                                          const std::vector<std::string>& zygote_environment);

} // namespace berth
