// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/thread_wait.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <unistd.h>

namespace berth::engine {

void restart_with_sleeping_threads(char** argv) {
    if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr)
        return;
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    ::setenv("GOMP_SPINCOUNT", "0", /*overwrite=*/0);
    if (!error)
        ::execv(self.c_str(), argv); // on failure this one goes on, only slower
}

} // namespace berth::engine
