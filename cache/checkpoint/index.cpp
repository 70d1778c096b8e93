// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/index.h"

#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace berth {

namespace {

constexpr std::string_view kFetchAgain = "download the index again";

bool is_basename(std::string_view name) {
    return !name.empty() && name != "." && name != ".." &&
           name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

} // namespace

Result<CheckpointIndex> parse_index(std::string_view text, std::string_view shown) {
    auto parsed = parse_strict(text, shown);
    if (!parsed) {
        Error error = parsed.error();
        error.code = ErrorCode::kCorrupt;
        error.reason = error.reason == "DuplicateKey" ? "DuplicateTensor" : "BadIndex";
        return fail(std::move(error));
    }
    const json::object* object = parsed->if_object();
    const json::value* map = object != nullptr ? object->if_contains("weight_map") : nullptr;
    if (map == nullptr || !map->is_object())
        return fail_fault({"BadIndex", shown, "", "no weight_map",
                           "an object with a weight_map of tensor to file", kFetchAgain});
    CheckpointIndex index;
    std::set<std::string> files;
    for (const auto& [key, value] : map->get_object()) {
        std::string_view name(key.data(), key.size());
        if (!value.is_string())
            return fail_fault(
                {"BadIndex", shown, name, json::kind_name(value), "a file's name", kFetchAgain});
        std::string file(std::string_view(value.get_string()));
        if (!is_basename(file) || !file.ends_with(".safetensors"))
            return fail_fault({"BadIndex", shown, name, fmt::format("the file '{}'", file),
                               "the name of a .safetensors file beside the index",
                               "correct the index"});
        files.insert(file);
        index.file_of.emplace(name, std::move(file));
    }
    if (index.file_of.empty())
        return fail_fault(
            {"BadIndex", shown, "", "an empty weight_map", "at least one tensor", kFetchAgain});
    index.files.assign(files.begin(), files.end());
    return index;
}

Status check_index_files(const CheckpointIndex& index, const std::vector<std::string>& present,
                         std::string_view shown) {
    std::vector<std::string> missing;
    std::vector<std::string> unknown;
    auto has = [](const std::vector<std::string>& names, const std::string& name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const std::string& file : index.files)
        if (!has(present, file))
            missing.push_back(file);
    for (const std::string& file : present)
        if (!has(index.files, file))
            unknown.push_back(file);
    if (missing.empty())
        return {};
    std::string found =
        fmt::format("{} of {} files", index.files.size() - missing.size(), index.files.size());
    if (unknown.empty())
        return fail_fault({"IncompleteDownload", shown, "", found,
                           fmt::format("also {}", list_names(missing)),
                           "incomplete download: fetch the missing files"});
    return fail_fault(
        {"StaleIndex", shown, "",
         fmt::format("{}, beside {} that it does not name", found, list_names(unknown)),
         fmt::format("also {}", list_names(missing)),
         "the index is stale or belongs to another checkpoint: fetch the index and "
         "its files anew, or remove the index to load a single file"});
}

} // namespace berth
