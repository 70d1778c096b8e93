// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/publish_plan.h"

#include "base/json.h"
#include "cache/weights/canonical_json.h"
#include "cache/weights/fingerprint.h"
#include "engine_shim/protocol/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <sys/stat.h>

namespace berth {

namespace {

constexpr size_t kFilesMax = 512;
constexpr size_t kDocumentBytesMax = size_t{48} << 10; // it travels in one packet, escaped

tl::unexpected<Error> refuse(const PublishTensor& tensor, std::string_view why) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cannot publish tensor '{}': {}", tensor.name, why), "BadTensor");
}

uint64_t rounded(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

bool is_view(const PublishTensor& tensor) {
    return !tensor.strides.empty() || tensor.storage_offset != 0;
}

// What its storage must have at least.
Result<uint64_t> bytes_needed(const PublishTensor& tensor) {
    const uint64_t bits = bits_of(tensor.dtype);
    if (bits == 0 && is_view(tensor))
        return refuse(tensor, "elements of an unknown size have neither strides nor an offset");
    if (bits == 0)
        return tensor.opaque_bytes;
    if (bits % 8 != 0 && is_view(tensor))
        return refuse(tensor,
                      fmt::format("elements of {} bits have neither strides nor an offset", bits));
    auto extent = extent_of(tensor.shape, tensor.strides);
    uint64_t end = 0;
    if (!extent || __builtin_add_overflow(*extent, tensor.storage_offset, &end) ||
        __builtin_mul_overflow(end, bits, &end))
        return refuse(tensor, fmt::format("its {} dimensions, {} strides and offset do not fit "
                                          "each other or 64 bits",
                                          tensor.shape.size(), tensor.strides.size()));
    if (end % 8 != 0)
        return refuse(tensor, "its elements fill no whole bytes");
    return end / 8;
}

using ByName = std::map<std::string_view, const PublishTensor*>;

Result<ByName> index_tensors(const std::vector<PublishTensor>& tensors) {
    ByName by_name;
    for (const PublishTensor& tensor : tensors) {
        if (tensor.name.empty())
            return refuse(tensor, "it has no name");
        if (tensor.shape.size() > kTensorRankMax)
            return refuse(tensor, fmt::format("it has {} dimensions, at most {} are possible",
                                              tensor.shape.size(), kTensorRankMax));
        if (!by_name.emplace(tensor.name, &tensor).second)
            return refuse(tensor, "it is declared twice");
    }
    return by_name;
}

Result<const PublishTensor*> storage_owner(const PublishTensor& tensor, const ByName& by_name) {
    if (tensor.alias_of.empty())
        return &tensor;
    auto found = by_name.find(tensor.alias_of);
    if (found == by_name.end())
        return refuse(
            tensor, fmt::format("it is an alias of '{}', which is not declared", tensor.alias_of));
    if (!found->second->alias_of.empty())
        return refuse(tensor, fmt::format("it is an alias of '{}', itself an alias: name '{}'",
                                          tensor.alias_of, found->second->alias_of));
    if (found->second->kind != tensor.kind)
        return refuse(tensor, fmt::format("it is an alias of '{}', and one is a weight, the other "
                                          "a state",
                                          tensor.alias_of));
    return found->second;
}

ManifestEntry entry_of(const PublishTensor& tensor, const PlannedStorage& storage, bool strided) {
    ManifestEntry entry;
    entry.name = tensor.name;
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    entry.segment = storage.segment;
    entry.offset = storage.offset;
    entry.bytes = storage.bytes;
    entry.alias_of = tensor.alias_of;
    entry.kind = tensor.kind;
    entry.storage_offset = tensor.storage_offset;
    entry.strides = tensor.strides;
    entry.part_of_storage = strided;
    // A dense tensor in a storage that is larger than itself is a view like any other.
    if (strided && entry.strides.empty()) {
        entry.strides.resize(tensor.shape.size());
        uint64_t dense = 1;
        for (size_t axis = tensor.shape.size(); axis-- > 0; dense *= tensor.shape[axis])
            entry.strides[axis] = dense;
    }
    return entry;
}

void place(const PublishRequest& request, PublishPlan& plan, uint64_t granularity) {
    uint32_t segment = 0;
    for (TensorKind kind : {TensorKind::kWeight, TensorKind::kState}) {
        uint64_t end = 0;
        bool any = false;
        for (const PublishTensor& tensor : request.tensors) {
            if (tensor.kind != kind || !tensor.alias_of.empty())
                continue;
            PlannedStorage& storage = plan.storages.at(tensor.name);
            storage.segment = segment;
            storage.offset = end;
            end = rounded(end + storage.bytes, kTensorAlignment);
            any = true;
        }
        if (!any)
            continue;
        plan.parts.segment_bytes.push_back(
            rounded(std::max<uint64_t>(end, kTensorAlignment), granularity));
        ++segment;
    }
}

json::object file_json(const std::string& name, const struct stat& facts) {
    return {{"name", name},
            {"size", static_cast<uint64_t>(facts.st_size)},
            {"mtimeNs", facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec}};
}

// The files that a set is made from, by size and time: another file is another fingerprint.
Result<json::array> files_of(const std::string& path) {
    json::array files;
    struct stat facts{};
    if (path.empty())
        return files;
    if (::stat(path.c_str(), &facts) != 0)
        return fail_errno(fmt::format("looking at {}, from which the set is made", path));
    if (!S_ISDIR(facts.st_mode)) {
        files.push_back(file_json(path.substr(path.rfind('/') + 1), facts));
        return files;
    }
    std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
    if (!folder)
        return fail_errno(fmt::format("reading the folder {}", path));
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(folder.get()))
        names.emplace_back(entry->d_name);
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
        if (::stat((path + "/" + name).c_str(), &facts) != 0 || !S_ISREG(facts.st_mode))
            continue;
        if (files.size() == kFilesMax)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("{} has more than {} files: name the one that counts, or put "
                                    "what identifies them into the inputs",
                                    path, kFilesMax));
        files.push_back(file_json(name, facts));
    }
    return files;
}

} // namespace

Result<PublishPlan> plan_publication(const PublishRequest& request, uint64_t granularity_bytes) {
    if (request.tensors.empty())
        return fail(ErrorCode::kInvalidArgument, "a set without tensors cannot be published");
    BERTH_ASSIGN(const ByName by_name, index_tensors(request.tensors));
    PublishPlan plan;
    for (const PublishTensor& tensor : request.tensors) {
        BERTH_ASSIGN(const PublishTensor* owner, storage_owner(tensor, by_name));
        BERTH_ASSIGN(const uint64_t bytes, bytes_needed(tensor));
        PlannedStorage& storage = plan.storages[owner->name];
        storage.bytes = std::max(storage.bytes, bytes);
        plan.owner[tensor.name] = owner->name;
    }
    place(request, plan, granularity_bytes);
    for (const PublishTensor& tensor : request.tensors) {
        const PlannedStorage& storage = plan.storages.at(plan.owner.at(tensor.name));
        BERTH_ASSIGN(const uint64_t own, bytes_needed(tensor));
        if (bits_of(tensor.dtype) % 8 != 0 && own != storage.bytes)
            return refuse(tensor, "elements of less than a byte cannot be a part of a storage");
        plan.parts.entries.push_back(entry_of(tensor, storage, own != storage.bytes));
    }
    plan.parts.config_json = request.config_json;
    return plan;
}

Result<PublishFingerprint> publish_fingerprint(const PublishRequest& request,
                                               const protocol::Environment& environment) {
    if (request.producer_name.empty() || request.producer_version.empty())
        return fail(ErrorCode::kInvalidArgument,
                    "a publication needs its producer's name and version: another version makes "
                    "other bytes");
    BERTH_ASSIGN(json::value inputs, json::parse(request.inputs_json, "the publication's inputs"));
    if (!inputs.is_object())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the publication's inputs are {}, expected an object",
                                json::kind_name(inputs)));
    BERTH_ASSIGN(json::array files, files_of(request.path));
    json::object document = {{"producer",
                              {{"name", request.producer_name},
                               {"version", request.producer_version},
                               {"recipe", request.producer_recipe}}},
                             {"model", request.model},
                             {"inputs", std::move(inputs)},
                             {"files", std::move(files)},
                             {"layout", environment.layout},
                             {"environment",
                              {{"deviceKind", environment.device_kind},
                               {"computeCapability", environment.compute_capability},
                               {"cudaVersion", environment.cuda_version},
                               {"torchVersion", environment.torch_version}}}};
    document[boost::json::string_view(protocol::kPublishedField.data(),
                                      protocol::kPublishedField.size())] = true;
    PublishFingerprint fingerprint;
    fingerprint.document = canonical_json(document);
    if (fingerprint.document.size() > kDocumentBytesMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the publication's inputs make a document of {} bytes, at most {} "
                                "are possible: put a hash of the large parts into it",
                                fingerprint.document.size(), kDocumentBytesMax));
    BERTH_ASSIGN(fingerprint.sha256, hash_of_document(fingerprint.document));
    return fingerprint;
}

std::string declared_difference(const ManifestParts& declared, const Manifest& found) {
    if (declared.entries.size() != found.size())
        return fmt::format("it has {} tensors, {} are declared here", found.size(),
                           declared.entries.size());
    for (const ManifestEntry& entry : declared.entries) {
        int64_t index = found.find(entry.name);
        if (index < 0)
            return fmt::format("it lacks tensor '{}'", entry.name);
        TensorView view = found.at(static_cast<size_t>(index));
        bool same = view.dtype == entry.dtype && view.kind == entry.kind &&
                    view.alias_of == entry.alias_of && view.bytes == entry.bytes &&
                    view.storage_offset == entry.storage_offset &&
                    std::ranges::equal(view.shape, entry.shape) &&
                    (std::ranges::equal(view.strides, entry.strides) ||
                     (entry.strides.empty() && entry.storage_offset != 0));
        if (!same)
            return fmt::format("tensor '{}' is another one there: {} of {} bytes, here {} of {}",
                               entry.name, to_string(view.dtype), view.bytes,
                               to_string(entry.dtype), entry.bytes);
    }
    return {};
}

} // namespace berth
