// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/engine_node.h"

#include "cache/memory/nvml.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace berth::cli::bench {

namespace {

constexpr std::chrono::seconds kReadyMax{300};

constexpr std::string_view kModel = R"(---
apiVersion: berth/v1
kind: Model
metadata: {{name: model}}
spec: {{path: "{}", pin: true}}
)";
constexpr std::string_view kInstance = R"(---
apiVersion: berth/v1
kind: Instance
metadata: {{name: {}}}
spec:
  model: model
  priorityClassName: {}
{}  resources: {{requests: {{memory: {}}}, limits: {{memory: {}}}}}
  engine: {{driver: berth, command: ["{}"], startDeadline: 300s}}
)";

Result<std::string> gpu_named(const std::string& device) {
    if (device != "auto")
        return device;
    auto nvml = Nvml::open();
    auto gpus = nvml ? nvml->devices() : Result<std::vector<NvmlDevice>>(fail(nvml.error()));
    if (gpus && !gpus->empty())
        return gpus->front().uuid;
    return fail(ErrorCode::kUnsupported,
                fmt::format("no GPU is here ({}); --device host runs on host memory",
                            gpus ? "the driver lists none" : gpus.error().message),
                "NoGpu");
}

} // namespace

std::string model_document(const std::string& path) {
    return fmt::format(kModel, path);
}

std::string instance_document(const EngineInstance& instance) {
    const std::string slo =
        instance.slo.empty() ? std::string() : fmt::format("  slo: {}\n", instance.slo);
    return fmt::format(kInstance, instance.name, instance.class_name, slo, instance.requested,
                       instance.limit, fmt::join(instance.command, "\", \""));
}

Result<NodePlan> plan_engine_node(const std::string& programs, const std::string& device,
                                  std::vector<std::string> instances) {
    NodePlan plan;
    plan.programs =
        programs.empty() ? program_directory() : std::filesystem::absolute(programs).string();
    plan.instances = std::move(instances);
    plan.ready_max = kReadyMax;
    if (!device.starts_with("host")) {
        BERTH_ASSIGN(const std::string uuid, gpu_named(device));
        plan.devices = "[\"" + uuid + "\"]";
    }
    BERTH_ASSIGN(plan.folder, OwnNode::make_folder());
    return plan;
}

std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> words;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(' ', at), text.size());
        if (end > at)
            words.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return words;
}

} // namespace berth::cli::bench
