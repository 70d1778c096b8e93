// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/daemon_start.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

namespace berth {

Result<StartedDaemon> start_daemon(const std::string& socket_path) {
    const char* config = std::getenv("BERTH_CONFIG");
    if (config == nullptr || *config == '\0')
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("nothing listens at {} and BERTH_CONFIG is not set: set it to the "
                                "node's configuration so that berthd can be started, or start "
                                "berthd yourself",
                                socket_path));
    StartedDaemon started;
    started.config = config;
    std::string folder = std::filesystem::path(socket_path).parent_path().string();
    if (folder.empty())
        folder = ".";
    BERTH_TRY(make_directories(folder, 0750));
    started.log_path = folder + "/berthd.log";
    SpawnOptions spawn;
    spawn.command = {program_directory() + "/berthd", "--config", started.config};
    spawn.log_path = started.log_path;
    spawn.new_session = true;
    // An engine's own variables are not berthd's: it would pass them on to every engine it starts.
    for (const char* name : {"BERTH_INSTANCE", "BERTH_TOKEN", "BERTH_MODE"})
        if (std::getenv(name) != nullptr)
            spawn.environment[name] = "";
    auto process = Process::spawn(spawn);
    if (!process)
        return fail_in("starting berthd (it must lie beside this program)", process.error());
    started.process = std::move(*process);
    return started;
}

} // namespace berth
