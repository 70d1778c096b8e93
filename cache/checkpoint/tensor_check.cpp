// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/tensor_check.h"

#include "cache/checkpoint/expected_tensors.h"
#include "cache/checkpoint/fault.h"

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
        return names.contains(tensor.stored.name);
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

Status check_dense(Checkpoint& checkpoint) {
    const ModelConfig& config = checkpoint.config;
    Present present = by_name(checkpoint);
    std::vector<ExpectedTensor> expected = expected_tensors(config);
    std::vector<std::string> absent;
    std::set<std::string_view> known;
    bool tied = config.tie_word_embeddings;
    for (const ExpectedTensor& tensor : expected) {
        known.insert(tensor.name);
        auto found = present.find(tensor.name);
        if (found == present.end()) {
            if (!(tied && tensor.name == kHeadName))
                absent.push_back(tensor.name);
            continue;
        }
        const StoredTensor& stored = found->second->stored;
        if (stored.shape != tensor.shape)
            return fail_fault({"ShapeMismatch", checkpoint.files[found->second->file].name,
                               tensor.name, fmt::format("shape {}", shape_text(stored.shape)),
                               fmt::format("{} by config.json", shape_text(tensor.shape)),
                               "the file or config.json belongs to another model"});
    }
    for (const auto& [name, tensor] : present)
        if (!known.contains(name))
            return fail_fault({"StrayTensor", checkpoint.files[tensor->file].name, name,
                               "a tensor that the model does not have",
                               fmt::format("only tensors of {}", config.architecture_name),
                               "the file or config.json belongs to another model"});
    if (!absent.empty())
        return missing(checkpoint, absent, expected.size());
    if (!tied)
        return {};
    if (present.contains(kHeadName))
        drop(checkpoint, {std::string(kHeadName)});
    checkpoint.aliases.push_back({std::string(kHeadName), std::string(kEmbeddingName)});
    return {};
}

// Each module that a dense model has must have at least one tensor, whatever the method calls it.
Status check_quantised(Checkpoint& checkpoint) {
    Present present = by_name(checkpoint);
    std::vector<ExpectedTensor> expected = expected_tensors(checkpoint.config);
    std::vector<std::string> absent;
    bool tied = checkpoint.config.tie_word_embeddings;
    for (const ExpectedTensor& tensor : expected) {
        std::string module = tensor.name.substr(0, tensor.name.rfind('.') + 1);
        auto found = present.lower_bound(module);
        bool there = found != present.end() && found->first.starts_with(module);
        if (!there && !(tied && tensor.name == kHeadName))
            absent.push_back(tensor.name);
    }
    if (!absent.empty())
        return missing(checkpoint, absent, expected.size());
    return {};
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
    std::set<std::string, std::less<>> harmless;
    for (const CheckpointTensor& tensor : checkpoint.tensors)
        if (is_harmless_extra(tensor.stored.name))
            harmless.insert(tensor.stored.name);
    drop(checkpoint, harmless);
    if (checkpoint.tensors.empty())
        return fail_fault({"MissingTensor", all_files(checkpoint), "", "no tensor",
                           "a model's weights", "the file is empty: download it again"});
    bool is_known = checkpoint.config.architecture != Architecture::kUnknown;
    if (is_known && checkpoint.config.quantisation_method.empty())
        return check_dense(checkpoint);
    if (is_known)
        BERTH_TRY(check_quantised(checkpoint));
    Present present = by_name(checkpoint);
    if (checkpoint.config.tie_word_embeddings && !present.contains(kHeadName) &&
        present.contains(kEmbeddingName))
        checkpoint.aliases.push_back({std::string(kHeadName), std::string(kEmbeddingName)});
    return {};
}

} // namespace berth
