// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"

#include <string>

namespace berth {

// Starts the berthd that lies beside this program with the configuration that BERTH_CONFIG names,
// in a session of its own; its output goes to `log_path`. It outlives this process. Does not wait
// for it to listen.
struct StartedDaemon {
    Process process;
    std::string config;
    std::string log_path;
};
Result<StartedDaemon> start_daemon(const std::string& socket_path);

} // namespace berth
