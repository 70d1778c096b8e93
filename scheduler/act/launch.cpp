// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/launch.h"

#include "base/unique_fd.h"
#include "scheduler/act/rank_name.h"

#include <fmt/format.h>

#include <pwd.h>
#include <unistd.h>
#include <vector>

namespace berth {

namespace {

// Runs the command as another user through setpriv, which execs: the pid stays the engine's.
Status run_as(std::vector<std::string>& command, const std::string& user) {
    passwd entry{};
    passwd* found = nullptr;
    std::vector<char> buffer(16 << 10);
    ::getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (found == nullptr)
        return fail(ErrorCode::kNotFound,
                    fmt::format("engine.user names '{}', which this system does not have", user),
                    "UnknownUser");
    if (found->pw_uid == ::geteuid())
        return {};
    if (::geteuid() != 0)
        return fail(ErrorCode::kPermissionDenied,
                    fmt::format("engine.user is '{}', but berthd runs as user {}: only root may "
                                "start processes of others",
                                user, ::geteuid()),
                    "NotRoot");
    std::vector<std::string> wrapped = {"setpriv", fmt::format("--reuid={}", found->pw_uid),
                                        fmt::format("--regid={}", found->pw_gid), "--init-groups",
                                        "--"};
    wrapped.insert(wrapped.end(), command.begin(), command.end());
    command = std::move(wrapped);
    return {};
}

} // namespace

std::string program_of(const std::string& name, const NodePaths& paths) {
    if (name.find('/') != std::string::npos)
        return name;
    std::string sibling = paths.program_dir + "/" + name;
    return ::access(sibling.c_str(), X_OK) == 0 ? sibling : name;
}

Result<SpawnOptions> engine_launch(const node::StartProcess& start, const NodePaths& paths,
                                   const std::string& token, bool on_gpu,
                                   const LaunchedRank& place) {
    const policies::EngineSpec& engine = start.spec.engine;
    if (engine.command.empty())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("instance '{}' has no engine.command", start.instance.value));
    SpawnOptions options;
    options.command = engine.command;
    options.command.front() = program_of(options.command.front(), paths);
    if (!engine.user.empty())
        BERTH_TRY(run_as(options.command, engine.user));
    options.environment = engine.environment;
    options.environment["BERTH_SOCKET"] = paths.engine_socket;
    options.environment["BERTH_INSTANCE"] = start.instance.value;
    options.environment["BERTH_TOKEN"] = token;
    std::string devices;
    if (start.ranks > 1)
        devices = start.devices.at(place.rank).value;
    else
        for (const node::DeviceId& device : start.devices)
            devices += (devices.empty() ? "" : ",") + device.value;
    options.environment["BERTH_DEVICE"] = devices;
    options.environment["BERTH_MODEL_PATH"] = start.model.path;
    options.environment["BERTH_MODE"] = "client";
    // Exactly its own GPUs, by UUID; on a host device none.
    options.environment["CUDA_VISIBLE_DEVICES"] = on_gpu ? devices : "";
    // Threads that spin while they wait would take the cores of the engines beside them.
    options.environment.emplace("GOMP_SPINCOUNT", "0");
    if (start.ranks > 1) {
        options.environment["BERTH_RANK"] = std::to_string(place.rank);
        options.environment["BERTH_RANKS"] = std::to_string(start.ranks);
        options.environment["BERTH_RENDEZVOUS"] = place.rendezvous;
        // KV memory is unmapped and mapped again under graphs: buffers that NCCL had registered
        // there would be stale.
        options.environment["NCCL_GRAPH_REGISTER"] = "0";
    }
    options.working_directory = engine.working_directory;
    options.log_path = paths.engine_log(rank_name(start.instance, place.rank));
    options.new_session = true;
    BERTH_TRY(make_directories(paths.state_dir + "/engines", 0750));
    return options;
}

} // namespace berth
