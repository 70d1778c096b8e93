// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/report.h"

#include "base/json.h"
#include "base/units.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

std::string dtype_text(const PlacedTensor& tensor) {
    if (!tensor.is_cast())
        return std::string(to_string(tensor.dtype));
    return fmt::format("{}>{}", to_string(tensor.stored_dtype), to_string(tensor.dtype));
}

json::array names_json(const std::vector<std::string>& names) {
    return json::array(names.begin(), names.end());
}

double read_gigabytes_per_second(const LoadedSet& set) {
    auto read = set.phases.find("read");
    if (read == set.phases.end() || read->second <= 0)
        return 0;
    return static_cast<double>(set.bytes_read) / 1e6 / read->second;
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
    line("tensors", fmt::format("{}, {} aliased, {} ignored, {} cast", plan.layout.tensors.size(),
                                plan.layout.aliases.size(), checkpoint.ignored_tensors.size(),
                                plan.layout.cast_count));
    for (const CheckpointAlias& alias : plan.layout.aliases)
        line("alias", fmt::format("{} = {}", alias.name, alias.of));
    for (const std::string& name : checkpoint.ignored_tensors)
        line("ignored", fmt::format("tensor {}", name));
    for (const std::string& name : checkpoint.ignored_files)
        line("ignored", fmt::format("file {}", name));
    line("segment", format_bytes(plan.layout.segment_bytes));
    line("weight set", plan.fingerprint.id());
    size_t width = 4;
    for (const PlacedTensor& tensor : plan.layout.tensors)
        width = std::max(width, tensor.name.size());
    text += fmt::format("\n{:<{}}  {:<10}  {:<18}  {:>14}  {:>12}  file\n", "name", width, "dtype",
                        "shape", "offset", "bytes");
    for (const PlacedTensor& tensor : plan.layout.tensors)
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
    json::array tensors;
    for (const PlacedTensor& tensor : plan.layout.tensors) {
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
    for (const CheckpointAlias& alias : plan.layout.aliases)
        aliases[alias.name] = alias.of;
    json::object document = {{"checkpoint", checkpoint.folder},
                             {"architecture", checkpoint.config.architecture_name},
                             {"files", std::move(files)},
                             {"tensors", std::move(tensors)},
                             {"aliases", std::move(aliases)},
                             {"ignoredTensors", names_json(checkpoint.ignored_tensors)},
                             {"ignoredFiles", names_json(checkpoint.ignored_files)},
                             {"segmentBytes", plan.layout.segment_bytes},
                             {"bytesToRead", plan.layout.bytes_to_read},
                             {"castTensors", plan.layout.cast_count},
                             {"weightSet", plan.fingerprint.id()},
                             {"fingerprint", plan.fingerprint.sha256}};
    return json::serialize(document);
}

std::string outcome_text(const LoadOutcome& outcome) {
    std::string text = fmt::format(
        "loaded {} of weights ({} tensors) into weight set {}; read at {:.2f} GB/s from {}\n",
        format_bytes(outcome.plan.layout.segment_bytes), outcome.plan.layout.tensors.size(),
        outcome.plan.fingerprint.id(), read_gigabytes_per_second(outcome.set),
        outcome.set.filesystem);
    for (const auto& [phase, milliseconds] : outcome.set.phases)
        text += fmt::format("  {:<12}{:>10.1f} ms\n", phase, milliseconds);
    if (outcome.verified && outcome.different.empty())
        text += "verified: every tensor's bytes are those of its checksum\n";
    for (const std::string& name : outcome.different)
        text += fmt::format("DIFFERENT: tensor '{}' is not what its checksum says\n", name);
    return text;
}

std::string outcome_json(const LoadOutcome& outcome) {
    json::object phases;
    for (const auto& [phase, milliseconds] : outcome.set.phases)
        phases[phase] = milliseconds;
    json::object document = {{"weightSet", outcome.plan.fingerprint.id()},
                             {"fingerprint", outcome.plan.fingerprint.sha256},
                             {"segmentBytes", outcome.plan.layout.segment_bytes},
                             {"bytesRead", outcome.set.bytes_read},
                             {"filesystem", outcome.set.filesystem},
                             {"gigabytesPerSecond", read_gigabytes_per_second(outcome.set)},
                             {"phases", std::move(phases)},
                             {"verified", outcome.verified},
                             {"different", names_json(outcome.different)}};
    return json::serialize(document);
}

} // namespace berth
