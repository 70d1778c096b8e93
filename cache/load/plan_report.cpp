// SPDX-License-Identifier: Apache-2.0
#include "cache/load/plan_report.h"

#include "base/json.h"
#include "base/units.h"
#include "cache/checkpoint/fault.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

std::string dtype_text(const PlacedTensor& tensor) {
    if (tensor.dtype == tensor.stored_dtype)
        return std::string(to_string(tensor.dtype));
    return fmt::format("{}>{}", to_string(tensor.stored_dtype), to_string(tensor.dtype));
}

json::array names_json(const std::vector<std::string>& names) {
    return json::array(names.begin(), names.end());
}

// What each of several ranks gets.
std::string ranks_text(const LoadPlan& plan) {
    std::string text = fmt::format("\n{:>5}  {:>5}  {:>5}  {:>6}  {:>8}  {:>12}  weight set\n",
                                   "rank", "stage", "place", "expert", "tensors", "bytes");
    uint64_t sum = 0;
    for (const RankPlan& rank : plan.ranks) {
        RankPlace place = place_of(plan.recipe.parallelism, rank.rank).value();
        sum += rank.layout.segment_bytes;
        text +=
            fmt::format("{:>5}  {:>5}  {:>5}  {:>6}  {:>8}  {:>12}  {}\n", rank.rank, place.stage,
                        place.tensor_rank, place.expert_group, rank.layout.tensors.size(),
                        format_bytes(rank.layout.segment_bytes), rank.fingerprint.id());
    }
    LoadCost cost = cost_of(plan, DeviceKind::kHost, 0);
    text += fmt::format("{} on {} ranks in all, {} read from disk once\n", format_bytes(sum),
                        plan.ranks.size(), format_bytes(cost.bytes_to_read));
    return text;
}

json::array ranks_json(const LoadPlan& plan) {
    json::array ranks;
    for (const RankPlan& rank : plan.ranks) {
        RankPlace place = place_of(plan.recipe.parallelism, rank.rank).value();
        json::array tensors;
        for (const PlacedTensor& tensor : rank.layout.tensors)
            tensors.push_back({{"name", tensor.name},
                               {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                               {"bytes", tensor.bytes}});
        ranks.push_back({{"rank", rank.rank},
                         {"stage", place.stage},
                         {"tensorRank", place.tensor_rank},
                         {"expertGroup", place.expert_group},
                         {"segmentBytes", rank.layout.segment_bytes},
                         {"tensors", std::move(tensors)},
                         {"weightSet", rank.fingerprint.id()},
                         {"fingerprint", rank.fingerprint.sha256}});
    }
    return ranks;
}

} // namespace

std::string plan_text(const LoadPlan& plan) {
    const Checkpoint& checkpoint = plan.checkpoint;
    std::string text;
    auto line = [&](std::string_view name, const std::string& value) {
        text += fmt::format("{:<13}{}\n", name, value);
    };
    uint64_t file_bytes = 0;
    for (const CheckpointFile& file : checkpoint.files)
        file_bytes += file.bytes;
    line("checkpoint", checkpoint.folder);
    line("architecture", checkpoint.config.architecture_name);
    line("files", fmt::format("{} ({})", checkpoint.files.size(), format_bytes(file_bytes)));
    const Layout& layout = plan.layout();
    line("parallel", to_text(plan.recipe.parallelism));
    line("tensors",
         fmt::format("{}, {} aliased, {} ignored, {} cast, {} quantised", layout.tensors.size(),
                     layout.aliases.size(), checkpoint.ignored_tensors.size(), layout.cast_count,
                     layout.quantised_count));
    for (const CheckpointAlias& alias : layout.aliases)
        line("alias", fmt::format("{} = {}", alias.name, alias.of));
    if (!checkpoint.ignored_tensors.empty())
        line("ignored", fmt::format("tensors ({}): {}", format_bytes(checkpoint.ignored_bytes),
                                    list_names(checkpoint.ignored_tensors)));
    for (const std::string& name : checkpoint.ignored_files)
        line("ignored", fmt::format("file {}", name));
    if (plan.ranks.size() > 1)
        return text + ranks_text(plan);
    line("segment", format_bytes(layout.segment_bytes));
    line("weight set", plan.fingerprint().id());
    size_t width = 4;
    for (const PlacedTensor& tensor : layout.tensors)
        width = std::max(width, tensor.name.size());
    text += fmt::format("\n{:<{}}  {:<10}  {:<18}  {:>14}  {:>12}  file\n", "name", width, "dtype",
                        "shape", "offset", "bytes");
    for (const PlacedTensor& tensor : layout.tensors)
        text += fmt::format("{:<{}}  {:<10}  {:<18}  {:>14}  {:>12}  {}\n", tensor.name, width,
                            dtype_text(tensor), shape_text(tensor.shape), tensor.offset,
                            tensor.bytes, checkpoint.files[tensor.file].name);
    return text;
}

std::string plan_json(const LoadPlan& plan) {
    const Checkpoint& checkpoint = plan.checkpoint;
    json::array files;
    for (const CheckpointFile& file : checkpoint.files)
        files.push_back({{"name", file.name}, {"bytes", file.bytes}});
    const Layout& layout = plan.layout();
    json::array tensors;
    for (const PlacedTensor& tensor : layout.tensors) {
        json::array shape(tensor.shape.begin(), tensor.shape.end());
        std::string_view dtype = to_string(tensor.dtype);
        std::string_view stored = to_string(tensor.stored_dtype);
        tensors.push_back({{"name", tensor.name},
                           {"dtype", boost::json::string_view(dtype.data(), dtype.size())},
                           {"storedDtype", boost::json::string_view(stored.data(), stored.size())},
                           {"shape", std::move(shape)},
                           {"file", checkpoint.files[tensor.file].name},
                           {"offset", tensor.offset},
                           {"bytes", tensor.bytes}});
    }
    json::object aliases;
    for (const CheckpointAlias& alias : layout.aliases)
        aliases[alias.name] = alias.of;
    json::object document = {{"checkpoint", checkpoint.folder},
                             {"architecture", checkpoint.config.architecture_name},
                             {"files", std::move(files)},
                             {"tensors", std::move(tensors)},
                             {"aliases", std::move(aliases)},
                             {"ignoredTensors", names_json(checkpoint.ignored_tensors)},
                             {"ignoredFiles", names_json(checkpoint.ignored_files)},
                             {"segmentBytes", layout.segment_bytes},
                             {"bytesToRead", layout.bytes_to_read},
                             {"castTensors", layout.cast_count},
                             {"quantisedTensors", layout.quantised_count},
                             {"weightSet", plan.fingerprint().id()},
                             {"fingerprint", plan.fingerprint().sha256},
                             {"ranks", ranks_json(plan)}};
    return json::serialize(document);
}

} // namespace berth
