// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// kind: Node, and what all kinds share.
namespace berth::policies {

// Where a document came from, for errors found after reading ("configs/a.yaml:12:5").
struct Origin {
    std::string file;
    int line = 0;
    int column = 0;
    std::string text() const;
    bool operator==(const Origin&) const { return true; } // never makes two specs differ
};

struct HostDeviceSpec {
    std::string name; // "host-0"
    uint64_t memory_bytes = 0;
    bool operator==(const HostDeviceSpec&) const = default;
};
// devices: auto | ["GPU-..."] | {host: [{name, memory}]}
struct NodeDevices {
    bool automatic = true; // every GPU
    std::vector<std::string> ids;
    std::vector<HostDeviceSpec> host;
    bool operator==(const NodeDevices&) const = default;
};
enum class KeeperKind { kProcess, kSystemd };
struct AdminTcp {
    std::string listen; // "127.0.0.1:7070": loopback only
    std::string token_file;
    bool operator==(const AdminTcp&) const = default;
};
struct NodeSpec {
    std::string name;
    std::string socket;    // empty: the default place
    std::string group;     // empty: the process's own
    std::string state_dir; // empty: the default place
    NodeDevices devices;
    KeeperKind keeper = KeeperKind::kProcess;
    std::vector<std::string>
        policies; // files and folders, absolute where the file's folder is known
    std::optional<AdminTcp> admin_tcp;
    Origin origin;
    bool operator==(const NodeSpec&) const = default;
};

} // namespace berth::policies
