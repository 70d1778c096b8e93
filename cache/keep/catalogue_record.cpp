// SPDX-License-Identifier: Apache-2.0
#include "cache/keep/catalogue.h"

#include "base/json.h"

#include <fmt/format.h>

namespace berth {

namespace {

constexpr std::string_view kKeyPrefix = "set/";
constexpr int kRecordVersion = 1;

std::vector<uint64_t> read_sizes(json::Reader& reader, std::string_view field) {
    std::vector<uint64_t> sizes;
    const json::value* list = reader.any(field);
    if (list == nullptr || !list->is_array() || list->get_array().empty()) {
        reader.refuse(field, "expected a list of at least one size");
        return sizes;
    }
    for (const json::value& item : list->get_array()) {
        boost::json::error_code error;
        auto size = item.to_number<uint64_t>(error);
        if (error || size == 0)
            reader.refuse(field, "expected sizes above 0");
        sizes.push_back(size);
    }
    return sizes;
}

std::map<std::string, double> read_phases(json::Reader& reader, std::string_view field) {
    std::map<std::string, double> phases;
    const json::value* object = reader.any(field);
    if (object == nullptr)
        return phases;
    if (!object->is_object()) {
        reader.refuse(field, "expected an object");
        return phases;
    }
    for (const auto& [name, item] : object->get_object()) {
        boost::json::error_code error;
        auto milliseconds = item.to_number<double>(error);
        if (error)
            reader.refuse(field, "expected numbers");
        phases.emplace(std::string(name), milliseconds);
    }
    return phases;
}

} // namespace

bool is_resident_set_key(std::string_view key) {
    return key.starts_with(kKeyPrefix);
}

std::string keeper_meta_of(const ResidentSet& set) {
    json::object meta;
    meta["kind"] = "weight-set";
    meta["version"] = kRecordVersion;
    meta["weightSet"] = set.id;
    meta["fingerprint"] = set.fingerprint;
    // As text: its exact bytes are what the SHA-256 was made of.
    meta["fingerprintDocument"] = set.fingerprint_json;
    meta["model"] = set.model;
    meta["path"] = set.path;
    meta["device"] = set.device;
    json::array sizes;
    for (const Segment& segment : set.segments)
        sizes.emplace_back(segment.bytes);
    meta["segmentBytes"] = std::move(sizes);
    meta["tensors"] = set.tensors;
    meta["pinned"] = set.pinned;
    meta["loadedAtMs"] = set.loaded_at_ms;
    meta["bytesRead"] = set.bytes_read;
    json::object phases;
    for (const auto& [name, milliseconds] : set.phases)
        phases[name] = milliseconds;
    meta["phases"] = std::move(phases);
    return json::serialize(meta);
}

Result<ResidentSet> resident_set_from(std::string_view key, std::string_view meta,
                                      std::vector<UniqueFd> fds) {
    std::string what = fmt::format("the keeper's record '{}'", key);
    auto corrupt = [](Error error) {
        error.code = ErrorCode::kCorrupt;
        return fail(std::move(error));
    };
    auto document = json::parse(meta, what);
    if (!document)
        return corrupt(std::move(document).error());
    json::Reader reader(*document, what);
    ResidentSet set;
    std::string kind = reader.string("kind");
    int64_t version = reader.integer("version");
    set.id = reader.string("weightSet");
    set.fingerprint = reader.string("fingerprint");
    set.fingerprint_json = reader.string("fingerprintDocument");
    set.model = reader.string("model");
    set.path = reader.string("path");
    set.device = reader.string("device");
    std::vector<uint64_t> sizes = read_sizes(reader, "segmentBytes");
    set.tensors = reader.unsigned_integer("tensors");
    set.pinned = reader.boolean("pinned", false);
    set.loaded_at_ms = reader.integer("loadedAtMs");
    set.bytes_read = reader.unsigned_integer("bytesRead");
    set.phases = read_phases(reader, "phases");
    if (auto read = reader.allow_unknown().finish(); !read)
        return corrupt(std::move(read).error());
    if (kind != "weight-set" || version != kRecordVersion)
        return fail(ErrorCode::kMismatch,
                    fmt::format("{} is of kind '{}', version {}; expected 'weight-set', {}", what,
                                kind, version, kRecordVersion));
    if (set.key() != key)
        return fail(
            ErrorCode::kCorrupt,
            fmt::format("{} describes {}, which belongs under another key", what, set.key()));
    if (fds.size() != sizes.size() + 1)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("{} came with {} descriptors, expected {}: a manifest and {} "
                                "segments",
                                what, fds.size(), sizes.size() + 1, sizes.size()));
    set.manifest = std::move(fds.front());
    for (size_t i = 0; i < sizes.size(); ++i)
        set.segments.push_back(Segment{std::move(fds[i + 1]), sizes[i]});
    return set;
}

} // namespace berth
