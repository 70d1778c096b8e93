// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <string>
#include <vector>

namespace berth {

// Under NVIDIA's Multi-Process Service all clients share one server's context: one that is killed
// in the middle of its work leaves the others waiting for ever. So its control daemon is asked to
// end the work of each of these processes first (terminate_client). Success, too, when no such
// daemon lives behind the pipe directory or when none of them is its client; an error means that
// they must not be killed. Runs nvidia-cuda-mps-control, which may take seconds: on a worker.
Status release_mps_clients(const std::string& pipe_directory, const std::vector<int>& pids);

} // namespace berth
