// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <optional>
#include <string>
#include <vector>

namespace berth {

// Under NVIDIA's Multi-Process Service all clients share one server's context: one that is killed
// in the middle of its work leaves the others waiting for ever. So its control daemon is asked to
// end the work of each of these processes first (terminate_client). Success, too, when no such
// daemon lives behind the pipe directory or when none of them is its client; an error means that
// they must not be killed. Runs nvidia-cuda-mps-control, which may take seconds: on a worker.
Status release_mps_clients(const std::string& pipe_directory, const std::vector<int>& pids);

inline constexpr const char* kMpsControl = "nvidia-cuda-mps-control"; // the control program

// The pid of the control daemon behind a pipe directory, by what it has left there; nothing: none
// lives.
std::optional<int> mps_daemon_pid(const std::string& pipe_directory);
// Its servers' pids. `program` is the control program.
Result<std::vector<int>> mps_servers(const std::string& pipe_directory, const std::string& program);
// Asks it to end unless it has clients; whether it was asked.
Result<bool> quit_mps_unless_used(const std::string& pipe_directory, const std::string& program);

} // namespace berth
