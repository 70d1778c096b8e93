// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/server.h"
#include "policies/spec.h"
#include "scheduler/act/node_context.h"

#include <vector>

namespace berth {

// From the Node document: where things lie, defaults filled in, folders made.
Result<NodePaths> paths_of(const policies::NodeSpec& node);

// The devices that the Node document asks for, as they are found: fills in the context's devices
// and, where GPUs are wanted, its NVML. An unknown GPU, or none at all, is an error with words.
Result<std::vector<node::DeviceSeen>> find_devices(const policies::NodeSpec& node,
                                                   NodeContext& context);

// What the admin interface takes of its callers: a quarter of the descriptors and of the
// connections stays free for others, whoever calls most.
http::ServerLimits admin_limits();
// Listens where the Node document says: "http://127.0.0.1:7070". Another address than loopback
// takes its `anywhere` and TLS.
Result<std::string> listen_admin_tcp(http::Server& server, const policies::AdminTcp& tcp);

} // namespace berth
