// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/own_node.h"

#include <string>
#include <vector>

// What the nodes that benches start with real engines are made of.
namespace berth::cli::bench {

// The pinned model 'model'.
std::string model_document(const std::string& path);

struct EngineInstance {
    std::string name;
    std::string class_name;
    std::string requested, limit; // bytes, in words: "0", "16Gi"
    std::vector<std::string> command;
    std::string slo; // "{ttft: ..., ...}"; empty: none
};
std::string instance_document(const EngineInstance& instance);

// Where its programs and, of `device` (host, a GPU's UUID, or auto: the first GPU, since engines on
// two devices would not share it), its devices are, in a folder of its own. `programs`: empty:
// beside this program. Unsupported (NoGpu) where there is no GPU.
Result<NodePlan> plan_engine_node(const std::string& programs, const std::string& device,
                                  std::vector<std::string> instances);

// The words of a text that blanks part.
std::vector<std::string> words_of(const std::string& text);

} // namespace berth::cli::bench
