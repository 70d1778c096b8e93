// SPDX-License-Identifier: Apache-2.0
#include "cache/load/sealed_set.h"

#include "base/json.h"
#include "cache/checkpoint/fault.h"
#include "cache/weights/manifest_format.h"

#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

namespace berth {

namespace {

tl::unexpected<Error> no_manifest(std::string_view found) {
    return fail_fault({"CorruptManifest", "the first descriptor", "", found,
                       "a manifest, and behind it each of its segments",
                       "hand over the descriptors of one weight set, the manifest first",
                       ErrorCode::kInvalidArgument});
}

Status read_exactly(int fd, void* to, size_t bytes, uint64_t offset) {
    ssize_t got = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (got < 0)
        return fail_errno("reading the manifest");
    if (static_cast<size_t>(got) != bytes)
        return no_manifest(fmt::format("{} bytes at {} where {} must be", got, offset, bytes));
    return {};
}

// Another device than a set was made for.
tl::unexpected<Error> other_device(std::string_view origin, const std::string& made_for,
                                   const std::string& is) {
    return fail_fault({"EnvironmentMismatch", origin, "", "a weight set for " + made_for,
                       "one for " + is, "load the checkpoint for this device",
                       ErrorCode::kMismatch});
}

} // namespace

std::vector<uint64_t> SetView::segment_bytes() const {
    std::vector<uint64_t> sizes;
    for (const Segment& segment : segments)
        sizes.push_back(segment.bytes);
    return sizes;
}

Result<std::vector<uint64_t>> stated_segment_bytes(const UniqueFd& manifest) {
    struct stat facts{};
    if (::fstat(manifest.get(), &facts) != 0)
        return fail_errno("looking at the manifest's descriptor");
    if (!S_ISREG(facts.st_mode))
        return no_manifest("something that is no file");
    manifest_format::Header header{};
    BERTH_TRY(read_exactly(manifest.get(), &header, sizeof header, 0));
    if (header.magic != manifest_format::kMagic)
        return no_manifest("another magic number");
    if (header.segment_count > manifest_format::kSegmentsMax)
        return no_manifest(fmt::format("{} segments", header.segment_count));
    std::vector<uint64_t> sizes(header.segment_count);
    BERTH_TRY(read_exactly(manifest.get(), sizes.data(), sizes.size() * sizeof(uint64_t),
                           header.segments_at));
    return sizes;
}

Result<SealedSet> sealed_set_from(std::vector<UniqueFd> fds) {
    if (fds.empty())
        return no_manifest("no descriptor");
    SealedSet set;
    BERTH_ASSIGN(std::vector<uint64_t> sizes, stated_segment_bytes(fds[0]));
    if (sizes.size() + 1 != fds.size())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} descriptors came for a manifest and {} segments", fds.size(),
                                sizes.size()));
    // All else that can be wrong with it.
    BERTH_ASSIGN([[maybe_unused]] Manifest checked, Manifest::open(fds[0], sizes));
    set.manifest = std::move(fds[0]);
    for (size_t index = 0; index < sizes.size(); ++index)
        set.segments.push_back({std::move(fds[index + 1]), sizes[index]});
    return set;
}

Result<std::vector<Mapping>> map_segments(const SetView& set, Device& device) {
    std::vector<Mapping> mappings;
    for (const Segment& segment : set.segments) {
        BERTH_ASSIGN(Mapping mapping, device.map_read_only(segment));
        mappings.push_back(std::move(mapping));
    }
    return mappings;
}

Result<SetEnvironment> set_environment(std::string_view fingerprint_json) {
    BERTH_ASSIGN(json::value document, json::parse(fingerprint_json, "the set's fingerprint"));
    SetEnvironment found;
    if (!document.is_object())
        return found;
    auto text = [](const json::object& from, std::string_view name) {
        const json::value* value = from.if_contains({name.data(), name.size()});
        return value != nullptr && value->is_string()
                   ? std::string(std::string_view(value->get_string()))
                   : std::string();
    };
    const json::object& all = document.get_object();
    found.layout = text(all, "layout");
    if (const json::value* part = all.if_contains("environment");
        part != nullptr && part->is_object()) {
        found.device_kind = text(part->get_object(), "deviceKind");
        found.compute_capability = text(part->get_object(), "computeCapability");
    }
    return found;
}

Status check_device(const SetEnvironment& made_for, const Device& device, std::string_view origin) {
    const DeviceCapabilities& is = device.capabilities();
    std::string kind(to_string(is.kind));
    if (!made_for.device_kind.empty() && made_for.device_kind != kind)
        return other_device(origin, fmt::format("devices of kind '{}'", made_for.device_kind),
                            fmt::format("'{}', as {} is", kind, device.id()));
    if (!made_for.compute_capability.empty() &&
        made_for.compute_capability != is.compute_capability)
        return other_device(origin,
                            fmt::format("compute capability '{}'", made_for.compute_capability),
                            fmt::format("'{}', which {} has", is.compute_capability, device.id()));
    return {};
}

} // namespace berth
