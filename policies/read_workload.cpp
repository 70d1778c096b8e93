// SPDX-License-Identifier: Apache-2.0
#include "policies/fields.h"

#include <algorithm>

namespace berth::policies {

namespace {

std::vector<std::string> read_device_list(Fields& spec) {
    std::vector<std::string> ids = spec.texts("devices");
    if (ids.empty())
        spec.refuse("devices", "the list is empty; write auto for any device");
    for (const std::string& id : ids)
        if (!is_name(id))
            spec.refuse("devices", "not a device's id: '" + id + "'");
    return ids;
}

NodeDevices read_node_devices(Fields& spec) {
    NodeDevices out;
    const YAML::Node found = spec.node("devices");
    if (!found.IsDefined())
        return out;
    if (found.IsScalar()) {
        spec.word("devices", {"auto"});
        return out;
    }
    out.automatic = false;
    if (found.IsSequence()) {
        out.ids = read_device_list(spec);
        return out;
    }
    spec.map("devices", [&out](Fields& devices) {
        devices.maps("host", [&out](Fields& fields) {
            HostDeviceSpec one;
            one.name = fields.text("name");
            if (!is_name(one.name) || one.name.rfind("host-", 0) != 0)
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

bool is_loopback(const std::string& listen) {
    return listen.rfind("127.", 0) == 0 || listen.rfind("localhost:", 0) == 0 ||
           listen.rfind("[::1]:", 0) == 0;
}

void read_resources(Fields& spec, InstanceSpec& out) {
    bool has_limit = false;
    spec.map("resources", [&](Fields& resources) {
        resources.map("requests", [&out](Fields& requests) {
            out.memory_request_bytes = requests.bytes("memory", 0);
        });
        resources.map("limits", [&](Fields& limits) {
            has_limit = limits.has("memory");
            out.memory_limit_bytes = limits.bytes("memory", 0);
        });
    });
    if (!has_limit)
        out.memory_limit_bytes = out.memory_request_bytes;
    if (out.memory_limit_bytes < out.memory_request_bytes)
        spec.refuse("resources", "limits.memory (" + format_bytes_exact(out.memory_limit_bytes) +
                                     ") is less than requests.memory (" +
                                     format_bytes_exact(out.memory_request_bytes) + ")");
}

void read_engine(Fields& spec, InstanceSpec& out, const std::string& folder) {
    if (!spec.has("engine"))
        spec.refuse("engine", "missing; say what to run: engine: {driver: berth, command: [...]}");
    spec.map("engine", [&](Fields& engine) {
        const std::vector<std::string> drivers{"berth", "process", "vllm", "sglang"};
        const size_t driver = engine.word("driver", drivers, 0);
        if (driver > 1)
            engine.refuse("driver", "driver " + drivers[driver] +
                                        " is still to come; use berth, or process for a program "
                                        "that does not link libberth");
        out.engine.driver = static_cast<DriverKind>(driver);
        out.engine.command = engine.texts("command");
        if (out.engine.command.empty() || out.engine.command.front().empty())
            engine.refuse("command", "a program and its arguments are needed, as a list");
        out.engine.user = engine.text("user", "");
        out.engine.environment = engine.dictionary("environment");
        for (const auto& [name, value] : out.engine.environment)
            if (name.empty() || name.find('=') != std::string::npos || name.rfind("BERTH_", 0) == 0)
                engine.refuse("environment", "'" + name + "' may not be set here" +
                                                 (name.rfind("BERTH_", 0) == 0
                                                      ? ": BERTH_ variables are the daemon's"
                                                      : ""));
        out.engine.working_directory =
            resolve_path(engine.text("workingDirectory", folder), folder);
        out.engine.start_deadline = engine.duration("startDeadline", out.engine.start_deadline);
        if (out.engine.start_deadline <= Nanoseconds(0))
            engine.refuse("startDeadline", "must be above 0");
    });
}

} // namespace

NodeSpec read_node(Fields& spec, const std::string& folder) {
    NodeSpec out;
    out.socket = resolve_path(spec.text("socket", ""), folder);
    out.group = spec.text("group", "");
    out.state_dir = resolve_path(spec.text("stateDir", ""), folder);
    out.devices = read_node_devices(spec);
    out.keeper = static_cast<KeeperKind>(spec.word("keeper", {"process", "systemd"}, 0));
    for (const std::string& path : spec.texts("policies"))
        out.policies.push_back(resolve_path(path, folder));
    spec.map("adminTcp", [&](Fields& tcp) {
        AdminTcp admin;
        admin.listen = tcp.text("listen");
        if (!is_loopback(admin.listen))
            tcp.refuse("listen", "only loopback addresses are allowed (127.0.0.1:PORT), found '" +
                                     admin.listen + "'");
        admin.token_file = resolve_path(tcp.text("tokenFile"), folder);
        out.admin_tcp = std::move(admin);
    });
    return out;
}

ModelSpec read_model(Fields& spec, const std::string& folder) {
    ModelSpec out;
    out.path = resolve_path(spec.text("path"), folder);
    const std::vector<std::string> dtypes{"auto", "float32", "bfloat16", "float16"};
    out.dtype = dtypes[spec.word("dtype", dtypes, 0)];
    const std::vector<std::string> quantizations{"none", "fp8-block"};
    out.quantization = quantizations[spec.word("quantization", quantizations, 0)];
    const uint64_t tensor_parallel = spec.count("tensorParallel", 1);
    if (tensor_parallel == 0)
        spec.refuse("tensorParallel", "must be 1 or more");
    if (tensor_parallel > 1)
        spec.refuse("tensorParallel", "'" + std::to_string(tensor_parallel) +
                                          "' is still to come; only 1 is possible now");
    out.tensor_parallel = static_cast<uint32_t>(tensor_parallel);
    out.pin = spec.boolean("pin", false);
    return out;
}

InstanceSpec read_instance(Fields& spec, const std::string& folder) {
    InstanceSpec out;
    out.model = spec.text("model", "");
    out.class_name = spec.text("priorityClassName", "");
    const YAML::Node devices = spec.node("devices");
    if (devices.IsDefined() && devices.IsScalar())
        spec.word("devices", {"auto"});
    else if (devices.IsDefined())
        out.devices = read_device_list(spec);
    read_resources(spec, out);
    spec.map("slo", [&out](Fields& fields) {
        SloSpec slo;
        slo.ttft = fields.duration("ttft", Nanoseconds(0));
        slo.tpot = fields.duration("tpot", Nanoseconds(0));
        slo.percentile = fields.number("percentile", 99);
        if (slo.percentile <= 0 || slo.percentile >= 100)
            fields.refuse("percentile", "must lie between 0 and 100");
        out.slo = slo;
    });
    out.restart =
        static_cast<RestartPolicy>(spec.word("restart", {"Always", "OnFailure", "Never"}, 1));
    read_engine(spec, out, folder);
    if (out.engine.driver == DriverKind::kBerth) {
        if (out.model.empty())
            spec.refuse("model", "missing; an engine with driver berth needs a Model's name");
        if (out.memory_limit_bytes == 0)
            spec.refuse("resources", "limits.memory must be above 0: the engine's KV cache lives "
                                     "in its grant");
    }
    return out;
}

} // namespace berth::policies
