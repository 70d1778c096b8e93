// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What is read from /proc by more than one here.
namespace berth::proc {

// The entries of a folder that are numbers: pids, threads.
std::vector<int> numbers_in(const std::string& folder);
// The environment that a process was started with; nothing where we may not read it, or it is
// beyond the bound. May wait for what the process holds: on a worker.
std::optional<std::string> environment(int pid, size_t bytes_max);
// A variable in such an environment.
std::optional<std::string> variable(const std::string& environment, const std::string& name);
// Whether that process was started with a BERTH_TOKEN of this hash, as far as we may read it: an
// environment beyond the bound is nobody's.
bool has_token(int pid, const std::string& token_sha256, size_t environment_bytes_max);

} // namespace berth::proc
