// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/tensor_check.h"

#include "cache/checkpoint/expected_tensors.h"
#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/tied_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace berth {

namespace {

std::string quote_all(const std::vector<std::string>& names) {
    std::vector<std::string> quoted;
    for (const std::string& name : names)
        quoted.push_back(fmt::format("'{}'", name));
    return list_names(quoted);
}

std::string all_files(const Checkpoint& checkpoint) {
    std::vector<std::string> names;
    for (const CheckpointFile& file : checkpoint.files)
        names.push_back(file.name);
    return list_names(names, 4);
}

using Present = std::map<std::string_view, const CheckpointTensor*>;

Present by_name(const Checkpoint& checkpoint) {
    Present present;
    for (const CheckpointTensor& tensor : checkpoint.tensors)
        present.emplace(tensor.stored.name, &tensor);
    return present;
}

void drop(Checkpoint& checkpoint, const std::set<std::string, std::less<>>& names) {
    std::erase_if(checkpoint.tensors, [&](const CheckpointTensor& tensor) {
        bool is_dropped = names.contains(tensor.stored.name);
        checkpoint.ignored_bytes += is_dropped ? tensor.stored.bytes : 0;
        return is_dropped;
    });
    checkpoint.ignored_tensors.insert(checkpoint.ignored_tensors.end(), names.begin(), names.end());
}

tl::unexpected<Error> missing(const Checkpoint& checkpoint, const std::vector<std::string>& names,
                              size_t needed) {
    // An absent head alone has a cause of its own.
    bool is_head = names.size() == 1 && names[0] == kHeadName;
    return fail_fault(
        {is_head ? "UntiedHeadMissing" : "MissingTensor", all_files(checkpoint),
         names.size() == 1 ? std::string_view(names[0]) : std::string_view(),
         names.size() == 1 ? std::string("nothing") : fmt::format("no {}", quote_all(names)),
         fmt::format("each of the {} tensors that {} needs once", needed,
                     checkpoint.config.architecture_name),
         is_head ? "set tie_word_embeddings to true in config.json if the head is "
                   "tied, else download the checkpoint again"
                 : "the checkpoint is incomplete or config.json is another model's"});
}

bool fits(ElementKind kind, DType dtype, const ModelConfig& config) {
    switch (kind) {
    case ElementKind::kBlocks:
        return dtype == config.block_quantisation->dtype;
    case ElementKind::kScales:
        return BlockQuantisation::is_scale_dtype(dtype);
    case ElementKind::kFloat:
        break;
    }
    // A type that we do not know is carried as it is.
    return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
           dtype == DType::kBF16 || dtype == DType::kOpaque;
}

tl::unexpected<Error> wrong_dtype(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                  ElementKind kind) {
    std::string expected = "F64, F32, F16 or BF16";
    std::string_view remedy = "the file or config.json belongs to another model";
    if (kind == ElementKind::kBlocks) {
        expected = "F8_E4M3, since config.json says that this matrix is quantised by blocks";
        remedy = "name its module in modules_to_not_convert if it is not";
    } else if (kind == ElementKind::kScales) {
        expected = "F32 or BF16";
    } else if (!checkpoint.config.block_quantisation) {
        expected += ", since config.json names no quantisation";
        remedy = "restore quantization_config in config.json: download the file again";
    } else {
        expected += ", since this tensor is not one that is quantised by blocks";
    }
    return fail_fault({"WrongType", checkpoint.files[tensor.file].name, tensor.stored.name,
                       tensor.stored.dtype_name, expected, remedy});
}

// One tensor that is there against what it must be.
Status check_tensor(const Checkpoint& checkpoint, const CheckpointTensor& found,
                    const ExpectedTensor& expected) {
    if (!fits(expected.kind, found.stored.dtype, checkpoint.config))
        return wrong_dtype(checkpoint, found, expected.kind);
    if (found.stored.shape == expected.shape)
        return {};
    bool is_scale = expected.kind == ElementKind::kScales;
    return fail_fault({"ShapeMismatch", checkpoint.files[found.file].name, expected.name,
                       fmt::format("shape {}", shape_text(found.stored.shape)),
                       fmt::format("{} by config.json{}", shape_text(expected.shape),
                                   is_scale ? ", one factor for each block of 128x128" : ""),
                       "the file or config.json belongs to another model"});
}

tl::unexpected<Error> stray(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
    const ModelConfig& config = checkpoint.config;
    std::string_view name = tensor.stored.name;
    std::string_view remedy = "the file or config.json belongs to another model";
    ModelConfig deeper = config;
    deeper.num_nextn_predict_layers = UINT32_MAX;
    if (name.ends_with(kScaleSuffix) && !config.block_quantisation)
        remedy = "restore quantization_config in config.json: download the file again";
    else if (config.has_latent_attention() && is_prediction_layer(deeper, name))
        remedy = "if this layer guesses further tokens, say how many such layers there are in "
                 "num_nextn_predict_layers; else the file or config.json belongs to another model";
    return fail_fault({"StrayTensor", checkpoint.files[tensor.file].name, name,
                       "a tensor that the model does not have",
                       fmt::format("only tensors of {}", config.architecture_name), remedy});
}

Status check_known(Checkpoint& checkpoint) {
    const ModelConfig& config = checkpoint.config;
    Present present = by_name(checkpoint);
    std::vector<ExpectedTensor> expected = expected_tensors(config);
    std::vector<std::string> absent;
    std::set<std::string_view> known;
    bool tied = config.tie_word_embeddings;
    for (const ExpectedTensor& tensor : expected) {
        known.insert(tensor.name);
        auto found = present.find(tensor.name);
        if (found != present.end())
            BERTH_TRY(check_tensor(checkpoint, *found->second, tensor));
        else if (!(tied && tensor.name == kHeadName))
            absent.push_back(tensor.name);
    }
    for (const auto& [name, tensor] : present)
        if (!known.contains(name))
            return stray(checkpoint, *tensor);
    if (!absent.empty())
        return missing(checkpoint, absent, expected.size());
    if (!tied)
        return {};
    if (auto head = present.find(kHeadName); head != present.end()) {
        BERTH_TRY(check_tied_head(checkpoint, *head->second, *present.at(kEmbeddingName)));
        drop(checkpoint, {std::string(kHeadName)});
    }
    checkpoint.aliases.push_back({std::string(kHeadName), std::string(kEmbeddingName)});
    return {};
}

// What can be said without knowing the model: a matrix of the quantised type has its factors, and
// factors have their matrix.
Status check_blocks(const Checkpoint& checkpoint) {
    const BlockQuantisation& blocks = *checkpoint.config.block_quantisation;
    Present present = by_name(checkpoint);
    std::vector<std::string> absent;
    size_t quantised = 0;
    for (const auto& [name, tensor] : present) {
        const StoredTensor& stored = tensor->stored;
        if (stored.dtype == blocks.dtype && name.ends_with(".weight")) {
            quantised += 1;
            std::string scale = std::string(name) + std::string(kScaleSuffix);
            auto found = present.find(scale);
            if (found == present.end())
                absent.push_back(scale);
            else if (stored.shape.size() == 2)
                BERTH_TRY(check_tensor(checkpoint, *found->second,
                                       {scale, blocks.scale_shape(stored.shape[0], stored.shape[1]),
                                        ElementKind::kScales, false}));
        } else if (name.ends_with(kScaleSuffix)) {
            std::string weight(name.substr(0, name.size() - kScaleSuffix.size()));
            auto found = present.find(weight);
            if (found == present.end())
                absent.push_back(weight);
            else if (found->second->stored.dtype != blocks.dtype)
                return wrong_dtype(checkpoint, *found->second, ElementKind::kBlocks);
        }
    }
    if (!absent.empty())
        return missing(checkpoint, absent, 2 * quantised);
    return {};
}

void drop_extras(Checkpoint& checkpoint) {
    std::set<std::string, std::less<>> extras;
    for (const CheckpointTensor& tensor : checkpoint.tensors)
        if (is_harmless_extra(tensor.stored.name) ||
            is_prediction_layer(checkpoint.config, tensor.stored.name))
            extras.insert(tensor.stored.name);
    drop(checkpoint, extras);
}

} // namespace

Status check_shard(const CheckpointIndex& index, const std::string& file,
                   const std::vector<StoredTensor>& tensors) {
    std::set<std::string_view> here;
    for (const StoredTensor& tensor : tensors) {
        here.insert(tensor.name);
        auto assigned = index.file_of.find(tensor.name);
        if (assigned == index.file_of.end())
            return fail_fault({"StrayTensor", file, tensor.name, "a tensor that the index lacks",
                               fmt::format("only what {} names for this file", kIndexName),
                               "file and index are of different versions: download both again"});
        if (assigned->second != file)
            return fail_fault(
                {"StrayTensor", file, tensor.name, "it in this file",
                 fmt::format("it in {} alone, as {} says", assigned->second, kIndexName),
                 "file and index are of different versions: download both again"});
    }
    std::vector<std::string> absent;
    for (const auto& [name, assigned] : index.file_of)
        if (assigned == file && !here.contains(name))
            absent.push_back(name);
    if (absent.empty())
        return {};
    return fail_fault(
        {"MissingTensor", file, absent.size() == 1 ? absent[0] : std::string(),
         absent.size() == 1 ? std::string("nothing") : fmt::format("no {}", quote_all(absent)),
         fmt::format("what {} says is in this file", kIndexName),
         "file and index are of different versions: download both again"});
}

Status check_model(Checkpoint& checkpoint) {
    drop_extras(checkpoint);
    if (checkpoint.tensors.empty())
        return fail_fault({"MissingTensor", all_files(checkpoint), "", "no tensor",
                           "a model's weights", "the file is empty: download it again"});
    if (checkpoint.config.architecture != Architecture::kUnknown)
        return check_known(checkpoint);
    if (checkpoint.config.block_quantisation)
        BERTH_TRY(check_blocks(checkpoint));
    Present present = by_name(checkpoint);
    if (checkpoint.config.tie_word_embeddings && !present.contains(kHeadName) &&
        present.contains(kEmbeddingName))
        checkpoint.aliases.push_back({std::string(kHeadName), std::string(kEmbeddingName)});
    return {};
}

} // namespace berth
