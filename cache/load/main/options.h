// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/load.h"

#include <optional>
#include <string>

namespace berth {

// The command line of berth-loader.
struct LoaderOptions {
    std::string model;
    std::string device = "host-0";
    std::optional<std::string> environment_json;
    int control_fd = -1; // -1: nobody is listening, load for oneself
    bool check = false;
    bool verify = false;
    bool json = false;
    int threads = 0;
    LoadRequest request; // path, recipe and checkpoint options filled in
};

// A value, or the program's exit code when the command line said all there is to say (--help, a
// mistake).
struct ParsedOptions {
    std::optional<LoaderOptions> options;
    int exit_code = 0;
};
ParsedOptions parse_options(int argc, char** argv);

} // namespace berth
