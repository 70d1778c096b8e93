// SPDX-License-Identifier: Apache-2.0
#include "policies/fields.h"

#include <algorithm>

namespace berth::policies {

constexpr int64_t kDevicesMax = 64; // of one node

std::vector<std::string> read_device_list(Fields& spec) {
    std::vector<std::string> ids =
        spec.some_texts("devices", Need::kOptional, "write auto for any device");
    for (size_t i = 0; i < ids.size(); ++i) {
        if (!is_name(ids[i]))
            spec.refuse_item("devices", i, "not a device's id: '" + ids[i] + "'");
        for (size_t j = 0; j < i; ++j)
            if (ids[i] == ids[j])
                spec.refuse_item("devices", i, "device '" + ids[i] + "' is given twice");
    }
    return ids;
}

namespace {

void read_devices(Fields& spec, InstanceSpec& out) {
    out.devices_mark = spec.mark_of("devices");
    if (spec.is_list("devices"))
        out.devices = read_device_list(spec);
    if (spec.is_scalar("devices") || !spec.is_list("devices"))
        spec.word("devices", {"auto"}, 0);
    if (spec.has("deviceCount"))
        out.device_count_mark = spec.mark_of("deviceCount");
    const uint64_t count = spec.count("deviceCount", 1, Range{1, kDevicesMax});
    // Without a word there are as many as its Model has ranks (check_documents).
    out.device_count = spec.has("deviceCount") ? static_cast<uint32_t>(count) : 0;
    if (!out.devices.empty() && out.devices.size() < count)
        spec.refuse("devices", "the list has " + std::to_string(out.devices.size()) +
                                   ", fewer than deviceCount: " + std::to_string(count));
}

void read_resources(Fields& spec, InstanceSpec& out) {
    out.memory_mark = spec.mark_of("resources");
    spec.map("resources", [&](Fields& resources) {
        resources.map("requests", [&out](Fields& requests) {
            out.memory_request_bytes = requests.bytes("memory", 0);
            out.memory_mark = requests.mark_of("memory");
        });
        out.memory_limit_bytes = out.memory_request_bytes;
        resources.map("limits", [&](Fields& limits) {
            out.memory_limit_bytes =
                limits.optional_bytes("memory").value_or(out.memory_request_bytes);
            if (out.memory_limit_bytes < out.memory_request_bytes)
                limits.refuse("memory", "limits.memory (" +
                                            format_bytes_exact(out.memory_limit_bytes) +
                                            ") is less than requests.memory (" +
                                            format_bytes_exact(out.memory_request_bytes) + ")");
        });
    });
}

void read_slo(Fields& fields, InstanceSpec& out) {
    SloSpec slo;
    if (!fields.has("ttft") && !fields.has("tpot"))
        fields.refuse("ttft", "an slo needs ttft, tpot or both");
    slo.ttft = fields.duration_above_0("ttft", Nanoseconds(0));
    slo.tpot = fields.duration_above_0("tpot", Nanoseconds(0));
    slo.percentile = fields.percentile("percentile", slo.percentile);
    out.slo = slo;
}

// A socket that outlives the engine.
void read_listen(Fields& engine, InstanceSpec& out) {
    out.listen_mark = engine.mark_of("listen");
    EngineSpec& its = out.engine;
    its.listen = engine.text("listen", "");
    its.journal = engine.boolean("journal", true);
    its.step_deadline = engine.duration_above_0("stepDeadline", its.step_deadline);
    if (its.listen.empty() && (engine.has("journal") || engine.has("stepDeadline")))
        engine.refuse(engine.has("journal") ? "journal" : "stepDeadline",
                      "needs listen: the address of a socket that outlives the engine");
    if (its.listen.starts_with("unix:")) {
        if (!its.listen.substr(5).starts_with('/'))
            engine.refuse("listen", "a Unix socket's path begins with '/', found '" +
                                        its.listen.substr(5) + "'");
    } else if (!its.listen.empty()) {
        if (const auto parsed = listen_address(its.listen); !parsed)
            engine.refuse("listen", parsed.error().message + ", or unix:/PATH");
    }
}

void read_engine(Fields& spec, InstanceSpec& out, const std::string& folder) {
    const char* hint = "say what to run: engine: {driver: berth, command: [...]}";
    const auto read = [&](Fields& engine) {
        for (const char* driver : {"vllm", "sglang"})
            engine.to_come("driver", driver,
                           "use berth, or process for a program that does not link libberth");
        out.engine.driver = static_cast<DriverKind>(engine.word("driver", {"berth", "process"}, 0));
        out.engine.command = engine.some_texts("command", Need::kRequired,
                                               "a program and its arguments are needed, as a list");
        if (out.engine.command.front().empty())
            engine.refuse_item("command", 0, "a program's name must not be empty");
        out.engine.user = engine.text("user", "");
        out.engine.environment = engine.dictionary("environment");
        for (const auto& [name, value] : out.engine.environment)
            if (name.empty() || name.find('=') != std::string::npos || name.rfind("BERTH_", 0) == 0)
                engine.refuse("environment", "'" + name + "' may not be set here" +
                                                 (name.rfind("BERTH_", 0) == 0
                                                      ? ": BERTH_ variables are the daemon's"
                                                      : ""));
        // Not the file's folder: the same document means the same wherever it is read from.
        out.engine.working_directory = resolve_path(engine.text("workingDirectory", "/"), folder);
        out.engine.start_deadline =
            engine.duration_above_0("startDeadline", out.engine.start_deadline);
        read_listen(engine, out);
    };
    // A schema lets it be absent, as a standby has none of its own.
    if (spec.has("standbyOf"))
        spec.map("engine", read);
    else
        spec.needed_map("engine", hint, read);
}

// What a standby has of its own; all else is the other's (check_documents).
void read_standby(Fields& spec, InstanceSpec& out) {
    out.standby_mark = spec.mark_of("standbyOf");
    out.standby_of = spec.text("standbyOf", "");
    spec.map("standby", [&out](Fields& standby) {
        out.standby_grant =
            static_cast<StandbyGrant>(standby.word("grant", {"TakeOver", "Reserved"}, 0));
    });
    if (out.standby_of.empty() && spec.has("standby"))
        spec.refuse("standby", "needs standbyOf: the instance that it stands by for");
    if (out.standby_of.empty())
        return;
    for (const char* field : {"model", "priorityClassName", "tenant", "deviceCount", "resources",
                              "slo", "restart", "engine"})
        if (spec.has(field))
            spec.refuse(field, "a standby takes it from '" + out.standby_of +
                                   "'; only devices and standby are its own");
}

} // namespace

ModelSpec read_model(Fields& spec, const std::string& folder) {
    ModelSpec out;
    out.path = resolve_path(spec.text("path"), folder);
    const std::vector<std::string> dtypes{"auto", "float32", "bfloat16", "float16"};
    out.dtype = dtypes[spec.word("dtype", dtypes, 0)];
    const std::vector<std::string> quantizations{"none", "fp8-block"};
    out.quantization = quantizations[spec.word("quantization", quantizations, 0)];
    out.tensor_parallel =
        static_cast<uint32_t>(spec.count("tensorParallel", 1, Range{1, kDevicesMax}));
    out.pin = spec.boolean("pin", false);
    return out;
}

InstanceSpec read_instance(Fields& spec, const std::string& folder) {
    InstanceSpec out;
    out.model_mark = spec.mark_of("model");
    out.class_mark = spec.mark_of("priorityClassName");
    out.tenant_mark = spec.mark_of("tenant");
    out.model = spec.text("model", "");
    out.class_name = spec.text("priorityClassName", "");
    out.tenant = spec.text("tenant", "");
    read_devices(spec, out);
    read_resources(spec, out);
    spec.map("slo", [&out](Fields& fields) { read_slo(fields, out); });
    out.restart =
        static_cast<RestartPolicy>(spec.word("restart", {"Always", "OnFailure", "Never"}, 1));
    read_engine(spec, out, folder);
    read_standby(spec, out);
    if (out.standby_of.empty() && out.engine.driver == DriverKind::kBerth) {
        if (out.model.empty())
            spec.refuse("model", "missing; an engine with driver berth needs a Model's name");
        if (out.memory_limit_bytes == 0)
            spec.refuse("resources", "limits.memory must be above 0: the engine's KV cache lives "
                                     "in its grant");
    }
    return out;
}

} // namespace berth::policies
