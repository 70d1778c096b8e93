// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/commands.h"

#include <functional>
#include <string>

namespace berth::cli {

inline constexpr int kExitRefused = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotReachable = 3;

// What the command line asks for: `run` is empty when there is nothing more to do (help, version,
// a usage error: all printed already), and then `exit_code` says how the program ends.
struct Invocation {
    std::function<Status()> run;
    int exit_code = 0;
};
Invocation read_arguments(int argc, char** argv);

} // namespace berth::cli
