// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
// Where one of its fields stands, in the file of its origin.
struct Mark {
    int line = 0;
    int column = 0;
    bool operator==(const Mark&) const { return true; }
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
// What a caller of the admin interface may do: look; preempt, resume, load, ...; change documents,
// which say what runs. Each includes the one before.
enum class Role { kViewer, kOperator, kAdmin };
std::string_view to_string(Role role);         // "viewer", "operator", "admin"
Result<Role> role_from(std::string_view name); // InvalidArgument with the known names
// access: [{role: viewer, users: [alice, 1002], groups: [monitoring]}]
struct AccessRule {
    Role role = Role::kViewer;
    std::vector<std::string> users;  // names or numbers
    std::vector<std::string> groups; // names or numbers
    bool operator==(const AccessRule&) const = default;
};
struct AdminTcp {
    std::string listen; // "127.0.0.1:7070"; not loopback: only with `anywhere` and a certificate
    std::string token_file;
    std::string certificate_file; // PEM, with key_file: TLS; empty: plain HTTP
    std::string key_file;
    bool anywhere = false;
    bool operator==(const AdminTcp&) const = default;
};
struct ListenAddress {
    std::string host; // without the brackets of an IPv6 address
    uint16_t port = 0;
    bool is_loopback = false; // 127.x.x.x, ::1, or the name localhost
};
// "127.0.0.1:7070", "[::1]:7070", "host:0".
Result<ListenAddress> listen_address(std::string_view text);
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
    std::vector<AccessRule> access; // beside root and the daemon's user; empty: the standard rules
    Origin origin;
    Mark policies_mark;
    bool operator==(const NodeSpec&) const = default;
};

} // namespace berth::policies
