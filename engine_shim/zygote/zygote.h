// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace berth::zygote {

// Of a process that was forked from the zygote: what main goes on with, as if it had been executed.
struct Born {
    int argc = 0;
    char** argv = nullptr; // lives as long as the process
};

// Loads what programs shall find loaded; `with_gpu`: a GPU's libraries too. Must not start threads
// nor a driver.
using Preload = std::function<Status(bool with_gpu)>;

bool is_asked_for(int argc, char** argv);

// The zygote's life: loads, says that it is ready, forks on request. Returns nullopt in the zygote
// when berthd is gone or when it cannot be one (which it has said), and a Born in each forked
// process, once berthd has let it go. To be called first in main, before there is any thread; it
// blocks. A forked process has its own session, environment, working directory, log and name, the
// words of /proc are its own, and no descriptor of the zygote's is left to it.
std::optional<Born> serve(char** argv, const Preload& preload);

} // namespace berth::zygote
