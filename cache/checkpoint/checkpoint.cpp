// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/checkpoint.h"

#include "base/hash.h"
#include "base/unique_fd.h"
#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/index.h"
#include "cache/checkpoint/not_fetched.h"
#include "cache/checkpoint/tensor_check.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <optional>

namespace berth {

namespace {

namespace fs = std::filesystem;

constexpr size_t kConfigBytesMax = size_t{16} << 20;
constexpr size_t kIndexBytesMax = size_t{256} << 20;
constexpr std::string_view kSingleName = "model.safetensors";

// Which files of a folder are the checkpoint.
struct Source {
    std::vector<std::string> files;
    std::optional<CheckpointIndex> index;
    SideFile index_file;
    std::vector<std::string> ignored;
};

Result<std::vector<std::string>> list_folder(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error))
        names.push_back(entry->path().filename().string());
    if (error)
        return fail_errno(folder, error.value());
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<std::string> with_ending(const std::vector<std::string>& names,
                                     std::string_view ending) {
    std::vector<std::string> found;
    std::copy_if(names.begin(), names.end(), std::back_inserter(found),
                 [&](const std::string& name) { return name.ends_with(ending); });
    return found;
}

std::vector<std::string> without(const std::vector<std::string>& names,
                                 const std::vector<std::string>& taken) {
    std::vector<std::string> rest;
    for (const std::string& name : names)
        if (std::find(taken.begin(), taken.end(), name) == taken.end())
            rest.push_back(name);
    return rest;
}

// Reads a small file; its size and time are those of before the read, so that a later change shows.
Result<std::string> read_side_file(const std::string& path, size_t bytes_max, SideFile& facts) {
    BERTH_ASSIGN(facts, stat_side_file(path));
    BERTH_ASSIGN(std::string text, read_file(path, bytes_max));
    BERTH_TRY(check_is_fetched(text, fs::path(path).filename().string(), "JSON"));
    facts.hash = sha256_hex(text);
    return text;
}

Result<Source> source_from_index(const std::string& folder,
                                 const std::vector<std::string>& present) {
    Source source;
    std::string path = folder + "/" + std::string(kIndexName);
    BERTH_ASSIGN(std::string text, read_side_file(path, kIndexBytesMax, source.index_file));
    BERTH_ASSIGN(CheckpointIndex index, parse_index(text, kIndexName));
    BERTH_TRY(check_index_files(index, present, kIndexName));
    source.files = index.files;
    source.ignored = without(present, index.files);
    source.index = std::move(index);
    return source;
}

tl::unexpected<Error> no_source(const std::string& folder, const std::vector<std::string>& names,
                                const std::vector<std::string>& present) {
    if (!present.empty())
        return fail_fault({"MissingIndex", folder, "",
                           fmt::format("{} safetensors files ({}) without {}", present.size(),
                                       list_names(present, 4), kIndexName),
                           "an index that says which file holds which tensor",
                           "incomplete download: fetch the index, or give the path of one file",
                           ErrorCode::kNotFound});
    std::vector<std::string> others;
    for (std::string_view ending : {".bin", ".gguf", ".pt", ".pth"})
        for (const std::string& name : with_ending(names, ending))
            others.push_back(name);
    if (!others.empty())
        return fail_fault({"UnsupportedFormat", folder, "", list_names(others, 4),
                           "safetensors files", "convert the checkpoint to safetensors",
                           ErrorCode::kUnsupported});
    return fail_fault({"NoCheckpoint", folder, "", "no safetensors file",
                       fmt::format("{}, or shards with {}", kSingleName, kIndexName),
                       "check the path", ErrorCode::kNotFound});
}

Result<Source> find_source(const std::string& folder) {
    BERTH_ASSIGN(std::vector<std::string> names, list_folder(folder));
    std::vector<std::string> present = with_ending(names, ".safetensors");
    auto has = [&](std::string_view name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (has(kIndexName))
        return source_from_index(folder, present);
    Source source;
    if (has(kSingleName))
        source.files = {std::string(kSingleName)};
    else if (present.size() == 1)
        source.files = present;
    else
        return no_source(folder, names, present);
    source.ignored = without(present, source.files);
    return source;
}

// Headers of all files, each checked against the index if there is one.
Status read_headers(const Source& source, const CheckpointOptions& options,
                    Checkpoint& checkpoint) {
    for (const std::string& name : source.files) {
        std::string path = checkpoint.folder + "/" + name;
        BERTH_ASSIGN(SafetensorsHeader header,
                     read_safetensors_header(path, name, options.safetensors));
        if (source.index)
            BERTH_TRY(check_shard(*source.index, name, header.tensors));
        size_t file = checkpoint.files.size();
        checkpoint.files.push_back(
            {name, path, header.file_bytes, header.mtime_ns, header.header_hash});
        for (StoredTensor& tensor : header.tensors)
            checkpoint.tensors.push_back({std::move(tensor), file});
    }
    return {};
}

} // namespace

uint64_t Checkpoint::data_bytes() const {
    uint64_t sum = 0;
    for (const CheckpointTensor& tensor : tensors)
        sum += tensor.stored.bytes;
    return sum;
}

Result<SideFile> stat_side_file(const std::string& path) {
    struct stat facts{};
    if (::stat(path.c_str(), &facts) != 0) {
        if (errno == ENOENT)
            return fail(ErrorCode::kNotFound, path + ": no such file", "MissingFile");
        return fail_errno(path);
    }
    SideFile side;
    side.bytes = static_cast<uint64_t>(facts.st_size);
    side.mtime_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
    return side;
}

Result<Checkpoint> open_checkpoint(const std::string& path, const CheckpointOptions& options) {
    std::error_code error;
    fs::file_status status = fs::status(path, error);
    if (!fs::exists(status))
        return fail(ErrorCode::kNotFound,
                    path + ": no such checkpoint; expected a folder with config.json and "
                           "safetensors files, or one safetensors file",
                    "NoCheckpoint");
    Checkpoint checkpoint;
    Source source;
    if (fs::is_directory(status)) {
        checkpoint.folder = path;
        while (checkpoint.folder.size() > 1 && checkpoint.folder.ends_with('/'))
            checkpoint.folder.pop_back();
        BERTH_ASSIGN(source, find_source(checkpoint.folder));
    } else {
        fs::path file(path);
        checkpoint.folder = file.has_parent_path() ? file.parent_path().string() : ".";
        source.files = {file.filename().string()};
    }
    std::string config_path = checkpoint.folder + "/config.json";
    auto config = read_side_file(config_path, kConfigBytesMax, checkpoint.config_file);
    if (!config)
        return fail_in("the model's configuration", config.error());
    checkpoint.config_json = std::move(*config);
    BERTH_ASSIGN(checkpoint.config, parse_config(checkpoint.config_json, "config.json"));
    BERTH_TRY(check_quantisation_files(checkpoint.folder));
    checkpoint.index_file = source.index_file;
    checkpoint.ignored_files = source.ignored;
    BERTH_TRY(read_headers(source, options, checkpoint));
    BERTH_TRY(check_model(checkpoint));
    return checkpoint;
}

} // namespace berth
