// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/engine_documents.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::cli::bench {

namespace {

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
