// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

// The documents of the nodes that benches start with real engines. Pure.
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

// The words of a text that blanks part.
std::vector<std::string> words_of(const std::string& text);

} // namespace berth::cli::bench
