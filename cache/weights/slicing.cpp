// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/slicing.h"

#include "cache/checkpoint/expected_tensors.h"
#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/quantisation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace berth {

namespace {

constexpr uint64_t kNumberMax = 1'000'000; // of a layer or an expert
constexpr std::string_view kLayers = "model.layers.";
constexpr std::string_view kExperts = ".mlp.experts.";
constexpr std::string_view kWeight = ".weight";

enum class Cut { kWhole, kRows, kColumns };
enum class Unit { kOne, kHead, kKeyValueHead, kVocabulary };

// How a module's tensors are cut; `parts` of its rows are cut each for itself (fused projections).
struct Rule {
    std::string_view module;
    Cut cut = Cut::kWhole;
    std::array<Unit, 3> parts = {Unit::kOne, Unit::kOne, Unit::kOne};
    size_t part_count = 1;
    bool is_linear = true; // a matrix that may be quantised
};

constexpr Rule kRules[] = {
    {"embed_tokens", Cut::kRows, {Unit::kVocabulary}, 1, false},
    {"lm_head", Cut::kRows, {Unit::kVocabulary}, 1, false},
    {"q_proj", Cut::kRows, {Unit::kHead}},
    {"q_b_proj", Cut::kRows, {Unit::kHead}},
    {"kv_b_proj", Cut::kRows, {Unit::kHead}},
    {"k_proj", Cut::kRows, {Unit::kKeyValueHead}},
    {"v_proj", Cut::kRows, {Unit::kKeyValueHead}},
    {"qkv_proj", Cut::kRows, {Unit::kHead, Unit::kKeyValueHead, Unit::kKeyValueHead}, 3},
    {"o_proj", Cut::kColumns, {Unit::kHead}},
    {"gate_proj", Cut::kRows},
    {"up_proj", Cut::kRows},
    {"gate_up_proj", Cut::kRows, {Unit::kOne, Unit::kOne}, 2},
    {"down_proj", Cut::kColumns},
    {"q_a_proj"},
    {"kv_a_proj_with_mqa"},
    {"gate", Cut::kWhole, {}, 1, false},
};

struct ParsedName {
    std::string_view module; // "q_proj"
    std::string_view field;  // "weight", "bias", "weight_scale_inv"
    std::optional<uint64_t> layer;
    std::optional<uint64_t> expert;
};

std::optional<uint64_t> number_after(std::string_view name, std::string_view marker) {
    size_t at = name.find(marker);
    if (at == std::string_view::npos)
        return std::nullopt;
    std::string_view rest = name.substr(at + marker.size());
    uint64_t number = 0;
    auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc() || end == rest.data() + rest.size() || *end != '.' ||
        number > kNumberMax)
        return std::nullopt;
    return number;
}

ParsedName parse_name(std::string_view name) {
    ParsedName parsed;
    size_t dot = name.rfind('.');
    parsed.field = dot == std::string_view::npos ? name : name.substr(dot + 1);
    std::string_view path = dot == std::string_view::npos ? "" : name.substr(0, dot);
    size_t before = path.rfind('.');
    parsed.module = before == std::string_view::npos ? path : path.substr(before + 1);
    if (name.starts_with(kLayers))
        parsed.layer = number_after(name, kLayers);
    parsed.expert = number_after(name, kExperts);
    return parsed;
}

const Rule* rule_for(const ParsedName& name) {
    for (const Rule& rule : kRules)
        if (rule.module == name.module)
            return &rule;
    return nullptr;
}

bool is_replicated(const ParsedName& name) {
    return name.module.ends_with("norm") || name.module.ends_with("layernorm") ||
           name.field == "e_score_correction_bias";
}

uint64_t columns_of(const std::vector<uint64_t>& shape) {
    uint64_t columns = 1;
    for (size_t dimension = 1; dimension < shape.size(); ++dimension)
        columns *= shape[dimension];
    return columns;
}

std::string_view expert_prefix(std::string_view name) {
    return name.substr(0, name.find(kExperts) + kExperts.size());
}

} // namespace

// One tensor on its way to one rank: what all the steps below need.
class Cutter {
  public:
    Cutter(const Slicer& slicer, size_t index, const RankPlace& place)
        : slicer_(slicer), checkpoint_(slicer.checkpoint_),
          tensor_(checkpoint_.tensors[index].stored),
          file_(checkpoint_.files[checkpoint_.tensors[index].file].name),
          parallelism_(slicer.parallelism_), place_(place), name_(parse_name(tensor_.name)),
          rule_(rule_for(name_)), is_scale_(is_block_scale(tensor_.name)) {
        bool is_fp8 = tensor_.dtype == DType::kF8E4M3 && slicer.has_block_scales_;
        is_blocked_ = is_fp8 || (slicer.quantises_ && is_quantisable(tensor_.name, tensor_.shape));
    }

    Result<std::optional<Slice>> cut() {
        BERTH_ASSIGN(bool is_here, on_stage());
        if (!is_here)
            return std::optional<Slice>();
        uint32_t ranks = parallelism_.tensor, rank = place_.tensor_rank;
        if (name_.expert) {
            BERTH_ASSIGN(bool is_in_group, in_group());
            if (!is_in_group)
                return std::optional<Slice>();
            ranks = place_.expert_tensor;
            rank = place_.expert_tensor_rank;
        }
        uint64_t rows = tensor_.shape.empty() ? 1 : tensor_.shape[0];
        Slice slice{{{0, rows}}, {0, columns_of(tensor_.shape)}};
        if (ranks == 1 || is_replicated(name_))
            return std::optional(slice);
        if (rule_ == nullptr)
            return refuse("UnknownSlicing", "a module that is not in the table of cuts",
                          "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, their "
                          "fused forms, MLA's, experts, norms, embed_tokens or lm_head",
                          "load this model with one tensor-parallel rank");
        if (rule_->cut == Cut::kRows)
            BERTH_TRY(cut_rows(slice, ranks, rank));
        // A row-parallel layer's bias is added once, to the sum: every rank has it whole.
        if (rule_->cut == Cut::kColumns && tensor_.shape.size() >= 2)
            BERTH_TRY(cut_columns(slice, ranks, rank));
        return std::optional(slice);
    }

  private:
    tl::unexpected<Error> refuse(std::string_view reason, std::string_view found,
                                 std::string_view expected, std::string_view remedy) const {
        return fail_fault(
            {reason, file_, tensor_.name, found, expected, remedy, ErrorCode::kInvalidArgument});
    }

    Result<bool> on_stage() const {
        uint32_t last = parallelism_.pipeline - 1;
        if (last == 0)
            return true;
        uint64_t layers = checkpoint_.config.num_hidden_layers;
        if (layers < parallelism_.pipeline)
            return refuse(
                "NotDivisible", fmt::format("{} layers", layers),
                fmt::format("one for each of {} pipeline stages, or more", parallelism_.pipeline),
                "use fewer stages");
        if (name_.layer) // what lies behind the last layer predicts further tokens from its output
            return place_.stage == (*name_.layer >= layers ? last
                                                           : stage_of_layer(*name_.layer, layers,
                                                                            parallelism_.pipeline));
        if (tensor_.name == kEmbeddingName) {
            bool is_head = std::any_of(checkpoint_.aliases.begin(), checkpoint_.aliases.end(),
                                       [&](const auto& one) { return one.of == tensor_.name; });
            return place_.stage == 0 || (place_.stage == last && is_head);
        }
        if (tensor_.name == kHeadName || tensor_.name.starts_with("model.norm."))
            return place_.stage == last;
        return refuse("UnknownSlicing", "a tensor of no layer",
                      "model.layers.N., the embedding, "
                      "the final norm or the head",
                      "load this model with one pipeline stage");
    }

    Result<bool> in_group() const {
        if (parallelism_.expert == 1)
            return true;
        uint64_t experts = slicer_.experts_.find(expert_prefix(tensor_.name))->second;
        if (experts % parallelism_.expert != 0)
            return refuse("NotDivisible", fmt::format("{} experts", experts),
                          fmt::format("a multiple of {} groups", parallelism_.expert),
                          "choose an expert parallelism that divides the experts");
        return *name_.expert / (experts / parallelism_.expert) == place_.expert_group;
    }

    uint64_t units_of(Unit unit) const {
        if (unit == Unit::kHead)
            return checkpoint_.config.num_attention_heads;
        return unit == Unit::kKeyValueHead ? checkpoint_.config.num_key_value_heads : 0;
    }

    // The rank's part of `size` rows or columns, between units.
    Result<Range> divide(uint64_t size, Unit unit, uint64_t ranks, uint64_t rank) const {
        uint64_t units = units_of(unit);
        // Scales of heads that are no multiple of a block cannot be told apart: see check_blocks.
        uint64_t full = is_scale_ ? size * kQuantBlock : size;
        if (full == 0)
            return Range{};
        if (units == 0) {
            if (full % ranks != 0)
                return refuse("NotDivisible", fmt::format("{} {}", full, what(unit)),
                              fmt::format("a multiple of {} ranks", ranks),
                              "choose a tensor parallelism that divides it");
            units = full;
        }
        if (units > 0 && full % units != 0 && !is_scale_)
            return refuse("NotDivisible", fmt::format("{} rows or columns", full),
                          fmt::format("a multiple of {} heads", units), "check config.json");
        uint64_t per_unit = full / units;
        if (units >= ranks && units % ranks == 0) {
            uint64_t share = units / ranks * per_unit;
            return Range{rank * share, (rank + 1) * share};
        }
        if (unit == Unit::kKeyValueHead && ranks % units == 0) {
            uint64_t head = rank / (ranks / units); // neighbours share a head
            return Range{head * per_unit, (head + 1) * per_unit};
        }
        return refuse("NotDivisible", fmt::format("{} {}", units, what(unit)),
                      fmt::format("a number that {} ranks divide{}", ranks,
                                  unit == Unit::kKeyValueHead ? ", or that divides them" : ""),
                      "choose a tensor parallelism that divides the heads");
    }

    static std::string_view what(Unit unit) {
        switch (unit) {
        case Unit::kHead:
            return "attention heads";
        case Unit::kKeyValueHead:
            return "key/value heads";
        case Unit::kVocabulary:
            return "rows of the vocabulary";
        case Unit::kOne:
            break;
        }
        return "rows or columns";
    }

    // In elements of the tensor that the blocks belong to; `size` is where its last block ends.
    Result<Range> in_blocks(Range range, uint64_t size) const {
        if (!is_blocked_ && !is_scale_)
            return range;
        bool starts_whole = range.begin % kQuantBlock == 0;
        bool ends_whole = range.end % kQuantBlock == 0 || range.end >= size;
        if (!starts_whole || !ends_whole)
            return refuse("NotDivisible", fmt::format("a cut at {} to {}", range.begin, range.end),
                          fmt::format("cuts between quantisation blocks of {}", kQuantBlock),
                          "choose a tensor parallelism whose slices are whole blocks");
        if (!is_scale_)
            return range;
        return Range{range.begin / kQuantBlock, (range.end + kQuantBlock - 1) / kQuantBlock};
    }

    Status cut_rows(Slice& slice, uint32_t ranks, uint32_t rank) const {
        uint64_t rows = slice.rows[0].end;
        BERTH_ASSIGN(std::vector<uint64_t> parts, part_rows(rows));
        slice.rows.clear();
        uint64_t begin = 0, mine = 0;
        for (size_t part = 0; part < parts.size(); ++part) {
            BERTH_ASSIGN(Range range, divide(parts[part], rule_->parts[part], ranks, rank));
            uint64_t size = is_scale_ ? parts[part] * kQuantBlock : parts[part];
            BERTH_ASSIGN(range, in_blocks(range, size));
            // A part that begins inside of a block would share its factor with the part before.
            if (is_blocked_ && part > 0 &&
                (mine % kQuantBlock != 0 || (begin + range.begin) % kQuantBlock != 0))
                return refuse("NotDivisible",
                              fmt::format("a fused part that begins at row {} of the slice", mine),
                              fmt::format("parts of whole quantisation blocks of {}", kQuantBlock),
                              "choose a tensor parallelism whose slices are whole blocks");
            mine += range.size();
            slice.rows.push_back({begin + range.begin, begin + range.end});
            begin += parts[part];
        }
        return {};
    }

    // How many rows each part of a fused projection has.
    Result<std::vector<uint64_t>> part_rows(uint64_t rows) const {
        std::vector<uint64_t> parts;
        uint64_t shares = 0;
        for (size_t part = 0; part < rule_->part_count; ++part) {
            uint64_t units = units_of(rule_->parts[part]);
            parts.push_back(rule_->part_count > 1 && units > 0 ? units : 1);
            shares += parts.back();
        }
        if (rows % shares != 0)
            return refuse("NotDivisible", fmt::format("{} rows", rows),
                          fmt::format("a multiple of the {} heads or parts fused in it", shares),
                          "check config.json");
        for (uint64_t& part : parts)
            part *= rows / shares;
        return parts;
    }

    Status cut_columns(Slice& slice, uint32_t ranks, uint32_t rank) const {
        uint64_t columns = slice.columns.end;
        BERTH_ASSIGN(Range range, divide(columns, rule_->parts[0], ranks, rank));
        BERTH_ASSIGN(slice.columns, in_blocks(range, is_scale_ ? columns * kQuantBlock : columns));
        return {};
    }

    const Slicer& slicer_;
    const Checkpoint& checkpoint_;
    const StoredTensor& tensor_;
    std::string_view file_;
    const Parallelism& parallelism_;
    const RankPlace& place_;
    ParsedName name_;
    const Rule* rule_;
    bool is_scale_;
    bool is_blocked_ = false;
};

Slicer::Slicer(const Checkpoint& checkpoint, const Parallelism& parallelism, bool quantises)
    : checkpoint_(checkpoint), parallelism_(parallelism), quantises_(quantises) {
    for (const CheckpointTensor& tensor : checkpoint.tensors) {
        const std::string& name = tensor.stored.name;
        has_block_scales_ = has_block_scales_ || is_block_scale(name);
        if (std::optional<uint64_t> expert = number_after(name, kExperts)) {
            uint64_t& count = experts_[std::string(expert_prefix(name))];
            count = std::max(count, *expert + 1);
        }
    }
}

Result<std::optional<Slice>> Slicer::slice(size_t index, const RankPlace& place) const {
    return Cutter(*this, index, place).cut();
}

uint64_t Slice::row_count() const {
    uint64_t count = 0;
    for (const Range& range : rows)
        count += range.size();
    return count;
}

bool is_block_scale(std::string_view name) {
    if (!name.ends_with(kScaleSuffix))
        return false;
    name.remove_suffix(kScaleSuffix.size());
    return name.ends_with(kWeight);
}

bool is_quantisable(std::string_view name, const std::vector<uint64_t>& shape) {
    ParsedName parsed = parse_name(name);
    const Rule* rule = rule_for(parsed);
    return rule != nullptr && rule->is_linear && parsed.field == "weight" && shape.size() == 2;
}

uint32_t stage_of_layer(uint64_t layer, uint64_t layers, uint32_t stages) {
    uint64_t share = layers / stages, longer = layers % stages;
    uint64_t in_longer = longer * (share + 1);
    if (layer < in_longer)
        return static_cast<uint32_t>(layer / (share + 1));
    return static_cast<uint32_t>(longer + (layer - in_longer) / share);
}

} // namespace berth
