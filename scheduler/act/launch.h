// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/node/action.h"

#include <algorithm>
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
    // Of a further rank ("chat/1", see rank_name.h): "chat@1.log".
    std::string engine_log(const node::InstanceName& rank_name) const {
        std::string file = rank_name.value;
        std::replace(file.begin(), file.end(), '/', '@');
        return state_dir + "/engines/" + file + ".log";
    }
};

// The program that a command names: a bare name is looked for beside berthd first, so that a node's
// programs are of one release.
std::string program_of(const std::string& name, const NodePaths& paths);

// Which of several processes of one start it is, and where they meet.
struct LaunchedRank {
    uint32_t rank = 0;
    std::string rendezvous; // empty: it is alone
};
// How an instance's process is started: command, environment, log file, user.
Result<SpawnOptions> engine_launch(const node::StartProcess& start, const NodePaths& paths,
                                   const std::string& token, bool on_gpu,
                                   const LaunchedRank& place);

} // namespace berth
