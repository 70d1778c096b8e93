// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Which part of the machine's memory and processors is near a device. Everything here is advice: on
// a machine of one node, or one that tells nothing, there is nothing to do and that is no error.
// `sysfs` is where the kernel tells it; tests have one of their own.
namespace berth {

inline constexpr int kNoNumaNode = -1;

// "0-3,8,10-11" as the kernel writes it; an empty list is legal. Ascending, each once.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

// The node of a PCI device ("0000:1b:00.0"); kNoNumaNode where the kernel knows none, or where all
// memory is one node.
int numa_node_of_pci(const std::string& bus_id, const std::string& sysfs = "/sys");
// The nodes that are online, or an empty list where the kernel tells none.
std::vector<int> numa_nodes(const std::string& sysfs = "/sys");
// NotFound for a node that is not there.
Result<std::vector<int>> numa_node_cpus(int node, const std::string& sysfs = "/sys");

// Moves the calling thread to the node's processors, of those that it may use. kNoNumaNode: does
// nothing. NotFound for a node that is not there; FailedPrecondition where the thread may use none
// of its processors, and then it stays where it is.
Status prefer_node(int node, const std::string& sysfs = "/sys");

// Memory that is touched from now on comes from the node, while that has any. PermissionDenied
// where a container forbids it: then memory comes from where the thread that touches it runs.
Status place_on_node(void* address, uint64_t bytes, int node);

} // namespace berth
