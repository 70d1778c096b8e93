// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/idle_node.h"

#include <fmt/format.h>

#include <filesystem>

namespace berth::cli::bench {

namespace {

constexpr std::string_view kModel = R"(apiVersion: berth/v1
kind: Model
metadata: {{name: model}}
spec: {{path: {0}/model}}
)";
constexpr std::string_view kInstance = R"(---
apiVersion: berth/v1
kind: Instance
metadata: {{name: {0}}}
spec:
  model: model
  priorityClassName: batch
  resources: {{requests: {{memory: 16Mi}}, limits: {{memory: 16Mi}}}}
  engine: {{driver: berth, command: [{1}/berth, bench, idle-engine]}}
)";
// Of a decoder that nobody knows: one tensor is all that it takes.
constexpr std::string_view kConfig = R"({"architectures": ["Bench"], "model_type": "bench"})";
constexpr std::string_view kTensor =
    R"({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})";

// The file's head: the header's length in eight bytes, lowest first; the header; the data.
std::string checkpoint_bytes() {
    std::string header(kTensor);
    header.append((8 - header.size() % 8) % 8, ' ');
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    return bytes + header + std::string(16, '\0');
}

} // namespace

Result<std::unique_ptr<OwnNode>> start_idle_node(const std::string& programs, size_t engines) {
    NodePlan plan;
    plan.programs = programs;
    BERTH_ASSIGN(plan.folder, OwnNode::make_folder());
    std::error_code error;
    std::filesystem::create_directory(plan.folder + "/model", error);
    std::string policies = fmt::format(kModel, plan.folder);
    for (size_t n = 0; n < engines; ++n) {
        plan.instances.push_back(fmt::format("i{:02}", n));
        policies += fmt::format(kInstance, plan.instances.back(), programs);
    }
    BERTH_TRY(write_text(plan.folder + "/model/config.json", kConfig));
    BERTH_TRY(write_text(plan.folder + "/model/model.safetensors", checkpoint_bytes()));
    BERTH_TRY(write_text(plan.folder + "/policies.yaml", policies));
    return OwnNode::start(std::move(plan));
}

} // namespace berth::cli::bench
