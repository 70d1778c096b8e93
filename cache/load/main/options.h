// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/load.h"

#include <optional>
#include <string>
#include <vector>

namespace berth {

// The command line of berth-loader.
struct LoaderOptions {
    std::string model; // empty where an image or a source alone is loaded
    std::string device = "host-0";
    std::vector<std::string> devices; // by rank; empty: all on `device`
    std::optional<std::string> environment_json;
    int control_fd = -1;         // -1: nobody is listening, load for oneself
    std::string image;           // loaded instead of the checkpoint
    std::string write_image;     // written after a load by hand, or of the source
    std::vector<int> source_fds; // a sealed set to copy: its manifest, then its segments
    std::string source_device;   // where that set lies
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
