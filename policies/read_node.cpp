// SPDX-License-Identifier: Apache-2.0
// kind: Node.
#include "policies/fields.h"

#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <netinet/in.h>

namespace berth::policies {

namespace {

constexpr std::array<std::string_view, 3> kRoles{"viewer", "operator", "admin"};

NodeDevices read_node_devices(Fields& spec) {
    NodeDevices out;
    if (spec.is_scalar("devices"))
        spec.word("devices", {"auto"}, 0);
    if (spec.is_list("devices")) {
        out.automatic = false;
        out.ids = read_device_list(spec);
    }
    if (!spec.is_map("devices") && (spec.is_list("devices") || spec.is_scalar("devices")))
        return out;
    spec.map("devices", [&out](Fields& devices) {
        out.automatic = false;
        devices.maps("host", [&out](Fields& fields) {
            HostDeviceSpec one;
            one.name = fields.name("name");
            if (one.name.rfind("host-", 0) != 0)
                fields.refuse("name", "a host device is named host-N, found '" + one.name + "'");
            for (const HostDeviceSpec& other : out.host)
                if (other.name == one.name)
                    fields.refuse("name", "device '" + one.name + "' is given twice");
            one.memory_bytes = fields.bytes("memory");
            if (one.memory_bytes == 0)
                fields.refuse("memory", "must be above 0");
            out.host.push_back(std::move(one));
        });
        if (out.host.empty())
            devices.refuse("host", "at least one host device is needed");
    });
    return out;
}

// `anywhere` alone is not enough for another address: what is sent there must not be read by
// others.
AdminTcp read_admin_tcp(Fields& tcp, const std::string& folder) {
    AdminTcp out;
    out.listen = tcp.text("listen");
    auto parsed = listen_address(out.listen);
    if (!parsed)
        tcp.refuse("listen", parsed.error().message);
    const ListenAddress address = parsed.value_or(ListenAddress{}); // (refuse may return)
    out.token_file = resolve_path(tcp.text("tokenFile"), folder);
    out.certificate_file = resolve_path(tcp.text("certificateFile", ""), folder);
    out.key_file = resolve_path(tcp.text("keyFile", ""), folder);
    out.anywhere = tcp.boolean("anywhere", false);
    if (out.certificate_file.empty() != out.key_file.empty())
        tcp.refuse(out.key_file.empty() ? "certificateFile" : "keyFile",
                   "TLS takes both files: certificateFile and keyFile");
    if (!address.is_loopback && !out.anywhere)
        tcp.refuse("listen", "only loopback addresses are allowed (127.0.0.1:PORT), found '" +
                                 out.listen +
                                 "'; for another one set anywhere: true, and give certificateFile "
                                 "and keyFile");
    if (!address.is_loopback && out.certificate_file.empty())
        tcp.refuse("listen", "'" + out.listen +
                                 "' can be reached from elsewhere: without TLS anyone on the way "
                                 "could read the tokens; give certificateFile and keyFile");
    return out;
}

AccessRule read_access(Fields& fields) {
    AccessRule out;
    const std::vector<std::string> roles(kRoles.begin(), kRoles.end());
    out.role = static_cast<Role>(fields.word("role", roles));
    out.users = fields.texts("users");
    out.groups = fields.texts("groups");
    if (out.users.empty() && out.groups.empty())
        fields.refuse("role", "whose? Give users, groups or both");
    return out;
}

} // namespace

std::string_view to_string(Role role) {
    return kRoles.at(static_cast<size_t>(role));
}

Result<Role> role_from(std::string_view name) {
    for (size_t i = 0; i < kRoles.size(); ++i)
        if (kRoles.at(i) == name)
            return static_cast<Role>(i);
    return fail(ErrorCode::kInvalidArgument, "'" + std::string(name) +
                                                 "' is no role: expected viewer, operator or "
                                                 "admin");
}

Result<ListenAddress> listen_address(std::string_view text) {
    const size_t colon = text.rfind(':');
    uint16_t port = 0;
    const std::string_view digits =
        colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (bracketed)
        host = host.substr(1, host.size() - 2);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() ||
        host.empty() || (host.find(':') != std::string_view::npos) != bracketed)
        return fail(ErrorCode::kInvalidArgument,
                    "expected HOST:PORT, or [IPV6]:PORT, found '" + std::string(text) + "'");
    ListenAddress out{std::string(host), port, host == "localhost"};
    in_addr v4{};
    in6_addr v6{};
    if (::inet_pton(AF_INET, out.host.c_str(), &v4) == 1)
        out.is_loopback = ntohl(v4.s_addr) >> 24 == 127;
    else if (::inet_pton(AF_INET6, out.host.c_str(), &v6) == 1)
        out.is_loopback = IN6_IS_ADDR_LOOPBACK(&v6);
    return out;
}

NodeSpec read_node(Fields& spec, const std::string& folder) {
    NodeSpec out;
    out.socket = resolve_path(spec.text("socket", ""), folder);
    out.group = spec.text("group", "");
    out.state_dir = resolve_path(spec.text("stateDir", ""), folder);
    out.devices = read_node_devices(spec);
    out.keeper = static_cast<KeeperKind>(spec.word("keeper", {"process", "systemd"}, 0));
    out.policies_mark = spec.mark_of("policies");
    for (const std::string& path : spec.texts("policies"))
        out.policies.push_back(resolve_path(path, folder));
    spec.map("adminTcp", [&](Fields& tcp) { out.admin_tcp = read_admin_tcp(tcp, folder); });
    spec.maps("access", [&](Fields& fields) { out.access.push_back(read_access(fields)); });
    return out;
}

} // namespace berth::policies
