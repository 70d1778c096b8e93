// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <chrono>
#include <string>

namespace berth {

struct DaemonOptions {
    std::string config_file;
    std::string version;
    std::string zygote_off; // not empty: engines start by exec alone, and why
    std::chrono::steady_clock::time_point started; // of the process
};

// Runs the node until SIGTERM or SIGINT; engines and keeper go on afterwards. An error is why it
// could not start.
Status run_daemon(const DaemonOptions& options);

// Reads configuration and policies and says what they hold; starts nothing.
Result<std::string> check_configuration(const std::string& config_file);

} // namespace berth
