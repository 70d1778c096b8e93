// SPDX-License-Identifier: Apache-2.0
#include "scheduler/main/node_setup.h"

#include "base/descriptors.h"
#include "base/process.h"
#include "cache/weights/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

namespace berth {

namespace {

Result<std::string> default_runtime_dir() {
    if (::geteuid() == 0)
        return std::string("/run/berth");
    const char* base = std::getenv("XDG_RUNTIME_DIR");
    if (base == nullptr || *base == '\0')
        return fail(ErrorCode::kInvalidArgument,
                    "XDG_RUNTIME_DIR is not set: give the Node document a spec.socket");
    return std::string(base) + "/berth";
}

Result<std::string> default_state_dir() {
    if (::geteuid() == 0)
        return std::string("/var/lib/berth");
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0')
        return fail(ErrorCode::kInvalidArgument,
                    "HOME is not set: give the Node document a spec.stateDir");
    return std::string(home) + "/.local/state/berth";
}

void add_host(const policies::HostDeviceSpec& spec, NodeContext& context,
              std::vector<node::DeviceSeen>& seen) {
    node::DeviceId id(spec.name);
    seen.push_back({id, DeviceKind::kHost, "host memory", spec.memory_bytes});
    protocol::Environment environment;
    environment.device_kind = "host";
    environment.layout = std::string(kLayoutTag);
    environment.torch_version = "any";
    context.environments[id] = std::move(environment);
    context.device_order.push_back(id);
}

void add_gpu(const NvmlDevice& gpu, NodeContext& context, std::vector<node::DeviceSeen>& seen) {
    node::DeviceId id(gpu.uuid);
    seen.push_back({id, DeviceKind::kCuda, gpu.name, gpu.total_bytes});
    protocol::Environment environment;
    environment.device_kind = "cuda";
    environment.compute_capability = gpu.compute_capability;
    environment.cuda_version = context.nvml->cuda_version();
    environment.layout = std::string(kLayoutTag);
    environment.torch_version = "any";
    context.environments[id] = std::move(environment);
    context.device_order.push_back(id);
}

Status add_gpus(const policies::NodeDevices& wanted, NodeContext& context,
                std::vector<node::DeviceSeen>& seen) {
    auto nvml = Nvml::open();
    if (!nvml) {
        context.nvml_absent = nvml.error().message;
        if (wanted.automatic && wanted.ids.empty())
            return {};
        return fail(nvml.error());
    }
    context.nvml = std::make_shared<const Nvml>(std::move(*nvml));
    BERTH_ASSIGN(std::vector<NvmlDevice> found, context.nvml->devices());
    if (wanted.automatic) {
        for (const NvmlDevice& gpu : found)
            if (!gpu.mig_enabled)
                add_gpu(gpu, context, seen);
        return {};
    }
    for (const std::string& id : wanted.ids) {
        auto at = std::ranges::find(found, id, &NvmlDevice::uuid);
        if (at == found.end()) {
            std::vector<std::string> known;
            for (const NvmlDevice& gpu : found)
                known.push_back(gpu.uuid);
            return fail(ErrorCode::kNotFound,
                        fmt::format("spec.devices names '{}', which this machine does not have; it "
                                    "has: {}",
                                    id, fmt::join(known, ", ")),
                        "UnknownDevice");
        }
        add_gpu(*at, context, seen);
    }
    return {};
}

} // namespace

Result<NodePaths> paths_of(const policies::NodeSpec& node) {
    NodePaths paths;
    if (node.socket.empty()) {
        BERTH_ASSIGN(paths.runtime_dir, default_runtime_dir());
        paths.engine_socket = paths.runtime_dir + "/berthd.sock";
    } else {
        paths.engine_socket = std::filesystem::absolute(node.socket).lexically_normal().string();
        paths.runtime_dir = std::filesystem::path(paths.engine_socket).parent_path().string();
    }
    paths.admin_socket = paths.runtime_dir + "/admin.sock";
    paths.keeper_socket = paths.runtime_dir + "/keeper.sock";
    paths.state_dir = node.state_dir;
    if (paths.state_dir.empty()) {
        BERTH_ASSIGN(paths.state_dir, default_state_dir());
    }
    paths.state_dir = std::filesystem::absolute(paths.state_dir).lexically_normal().string();
    paths.program_dir = program_directory();
    return paths;
}

Result<std::vector<node::DeviceSeen>> find_devices(const policies::NodeSpec& node,
                                                   NodeContext& context) {
    std::vector<node::DeviceSeen> seen;
    const policies::NodeDevices& wanted = node.devices;
    context.nvml_absent = "no GPU was asked for (spec.devices)";
    if (wanted.automatic || !wanted.ids.empty())
        BERTH_TRY(add_gpus(wanted, context, seen));
    for (const policies::HostDeviceSpec& host : wanted.host)
        add_host(host, context, seen);
    if (seen.empty())
        return fail(
            ErrorCode::kFailedPrecondition,
            fmt::format("no device: {}. Without a GPU give the Node document a budget of host "
                        "memory: devices: {{host: [{{name: host-0, memory: 4Gi}}]}}",
                        context.nvml_absent),
            "NoDevice");
    return seen;
}

http::ServerLimits admin_limits() {
    constexpr size_t kConnectionsMax = 16'384;
    http::ServerLimits limits;
    limits.connections_max = kConnectionsMax;
    limits.connections_per_peer_max =
        std::min<size_t>(kConnectionsMax / 4 * 3, descriptor_limit() / 4 * 3);
    return limits;
}

Result<std::string> listen_admin_tcp(http::Server& server, const policies::AdminTcp& tcp) {
    BERTH_ASSIGN(policies::ListenAddress address, policies::listen_address(tcp.listen));
    http::TcpOptions options;
    options.loopback_only = !tcp.anywhere;
    if (!tcp.certificate_file.empty())
        options.tls = http::TlsFiles{tcp.certificate_file, tcp.key_file};
    if (!address.is_loopback && !options.tls)
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("adminTcp: '{}' can be reached from elsewhere and has no TLS", tcp.listen));
    BERTH_ASSIGN(uint16_t port, server.listen_tcp(address.host, address.port, options));
    bool is_v6 = address.host.find(':') != std::string::npos;
    return fmt::format("{}://{}{}{}:{}", options.tls ? "https" : "http", is_v6 ? "[" : "",
                       address.host, is_v6 ? "]" : "", port);
}

} // namespace berth
