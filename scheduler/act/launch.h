// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/node/action.h"

#include <string>

namespace berth {

// Where things lie on this node.
struct NodePaths {
    std::string runtime_dir; // of the sockets
    std::string engine_socket;
    std::string admin_socket;
    std::string keeper_socket;
    std::string state_dir;
    std::string program_dir; // of berth-loader, berth-keeper, berth-engine
    std::string engine_log(const node::InstanceName& instance) const {
        return state_dir + "/engines/" + instance.value + ".log";
    }
};

// The program that a command names: a bare name is looked for beside berthd first, so that a node's
// programs are of one release.
std::string program_of(const std::string& name, const NodePaths& paths);

// How an instance's process is started: command, environment, log file, user.
Result<SpawnOptions> engine_launch(const node::StartProcess& start, const NodePaths& paths,
                                   const std::string& token, bool on_gpu);

} // namespace berth
