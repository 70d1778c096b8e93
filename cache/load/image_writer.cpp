// SPDX-License-Identifier: Apache-2.0
#include "cache/load/drain.h"
#include "cache/load/image.h"
#include "cache/load/image_format.h"
#include "cache/load/new_file.h"
#include "cache/load/verify.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cstring>

namespace berth {

using image_format::Header;
using image_format::SegmentPlace;

namespace {

template <size_t N>
Status put_text(char (&field)[N], const std::string& text, std::string_view what) {
    if (text.size() >= N)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the set's {} is '{}', an image holds {} characters of it", what,
                                text, N - 1));
    std::memcpy(field, text.data(), text.size());
    return {};
}

Result<std::string> read_manifest_bytes(const UniqueFd& manifest) {
    struct stat facts{};
    if (::fstat(manifest.get(), &facts) != 0)
        return fail_errno("looking at the manifest's descriptor");
    std::string bytes(static_cast<size_t>(facts.st_size), '\0');
    ssize_t got = ::pread(manifest.get(), bytes.data(), bytes.size(), 0);
    if (got < 0)
        return fail_errno("reading the manifest");
    if (static_cast<size_t>(got) != bytes.size())
        return fail(ErrorCode::kIo, "the manifest could not be read in one piece");
    return bytes;
}

// Header, table and manifest: all before the first segment.
struct Front {
    std::string bytes;
    std::vector<SegmentPlace> places;
    uint64_t file_bytes = 0;
};

Result<Front> make_front(const SetView& set, const Manifest& manifest) {
    BERTH_ASSIGN(std::string text, read_manifest_bytes(set.manifest));
    BERTH_ASSIGN(SetEnvironment made_for, set_environment(manifest.fingerprint_json()));
    Header header{};
    header.magic = image_format::kMagic;
    header.version = image_format::kVersion;
    header.segment_count = static_cast<uint32_t>(set.segments.size());
    header.header_bytes = image_format::header_bytes_for(set.segments.size());
    header.manifest_at = header.header_bytes;
    header.manifest_bytes = text.size();
    Checksum checksum = checksum_of(std::as_bytes(std::span(text)));
    header.manifest_checksum_low = checksum.low;
    header.manifest_checksum_high = checksum.high;
    std::string_view fingerprint = manifest.fingerprint();
    if (fingerprint.size() != sizeof header.fingerprint)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the set's fingerprint has {} digits, expected {}",
                                fingerprint.size(), sizeof header.fingerprint));
    std::memcpy(header.fingerprint, fingerprint.data(), fingerprint.size());
    BERTH_TRY(put_text(header.layout, made_for.layout, "layout"));
    BERTH_TRY(put_text(header.device_kind, made_for.device_kind, "device kind"));
    BERTH_TRY(
        put_text(header.compute_capability, made_for.compute_capability, "compute capability"));

    Front front;
    uint64_t at = header.manifest_at + round_up(text.size(), image_format::kAlignment);
    for (const Segment& segment : set.segments) {
        front.places.push_back({at, segment.bytes});
        at += round_up(segment.bytes, image_format::kAlignment);
    }
    header.file_bytes = front.file_bytes = at;
    front.bytes.resize(header.header_bytes);
    std::memcpy(front.bytes.data(), &header, sizeof header);
    std::memcpy(front.bytes.data() + sizeof header, front.places.data(),
                front.places.size() * sizeof(SegmentPlace));
    checksum = checksum_of(std::as_bytes(std::span(front.bytes)));
    header.header_checksum_low = checksum.low;
    header.header_checksum_high = checksum.high;
    std::memcpy(front.bytes.data(), &header, sizeof header);
    front.bytes += text;
    return front;
}

} // namespace

Status write_image(const std::string& path, const SetView& set, Device& device, int threads,
                   const StreamProgress& progress) {
    BERTH_ASSIGN(Manifest manifest, Manifest::open(set.manifest, set.segment_bytes()));
    BERTH_ASSIGN(Front front, make_front(set, manifest));
    BERTH_ASSIGN(std::vector<Mapping> mappings, map_segments(set, device));
    // A fault of this memory must not outlive it.
    BERTH_ASSIGN(std::vector<std::string> different, verify(device, manifest, mappings));
    if (!different.empty())
        return checksum_mismatch(device.id(), different,
                                 "no image is made of it; load the checkpoint again, and suspect "
                                 "the device's memory");
    BERTH_ASSIGN(NewFile file, NewFile::create(path));
    BERTH_TRY(file.reserve(front.file_bytes));
    std::vector<DeviceExtent> extents;
    for (const Mapping& mapping : mappings)
        extents.push_back({mapping.data(), mapping.bytes()});
    auto store = [&](size_t segment, uint64_t offset, std::span<const std::byte> bytes) {
        return file.write(front.places[segment].at + offset, bytes);
    };
    BERTH_TRY(drain(device, extents, threads, store, progress));
    BERTH_TRY(file.write(0, std::as_bytes(std::span(front.bytes))));
    return file.publish();
}

} // namespace berth
