// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/dtype.h"

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// How a checkpoint's weights are quantised. One table (in quantisation.cpp) knows the methods by
// name; what it does not support is refused before any tensor is looked at, since a method that is
// half understood loads "fine" and computes garbage.
namespace berth {

inline constexpr uint64_t kQuantBlock = 128;                   // rows and columns of one block
inline constexpr std::string_view kScaleSuffix = "_scale_inv"; // behind the weight's own name

// A matrix X.weight of F8_E4M3 beside X.weight_scale_inv, one factor for each block of 128x128
// elements (fewer at the edges). The factors are F32 in DeepSeek's checkpoints, BF16 in some of
// Qwen's; both are carried as they are.
struct BlockQuantisation {
    uint64_t block_rows = kQuantBlock;
    uint64_t block_columns = kQuantBlock;
    DType dtype = DType::kF8E4M3;
    // Modules that stay as they were: names in full, beginnings or ends of names, at the dots.
    std::set<std::string, std::less<>> not_converted;

    // Whether the module's matrix is quantised; asked for linear projections alone.
    bool converts(std::string_view module) const;
    // Shape of the factors of a matrix.
    std::vector<uint64_t> scale_shape(uint64_t rows, uint64_t columns) const;
    static bool is_scale_dtype(DType dtype);
};

struct QuantisationMethod {
    std::string_view key;  // as `quant_method` says it, in lower case with '_'
    std::string_view name; // as people say it
    bool is_supported = false;
};

std::span<const QuantisationMethod> quantisation_methods();
// "none; block-wise FP8 (...)".
std::string supported_quantisations();

struct Quantisation {
    std::string method;      // `quant_method`; empty: none
    std::string config_json; // canonical text of the configuration; empty: none
    std::optional<BlockQuantisation> blocks;
};

// Reads the text of `quantization_config`. Unsupported, with the reason UnsupportedQuantisation,
// names the method and what works; Corrupt what cannot be read. `shown` names the file.
Result<Quantisation> parse_quantisation(std::string_view text, std::string_view shown);

// Some methods describe themselves in a file of their own beside config.json (hf_quant_config.json,
// quantize_config.json, quant_config.json): refused likewise. Blocks on the disk.
Status check_quantisation_files(const std::string& folder);

} // namespace berth
