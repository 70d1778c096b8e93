// SPDX-License-Identifier: Apache-2.0
// A sealed manifest of any bytes, or a good one with bytes changed: refused, or every accessor
// stays within it.
#include "cache/weights/manifest.h"
#include "cache/weights/manifest_format.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

// The sizes that the image itself names, so that the check of the entries is reached.
std::vector<uint64_t> segments_of(std::string_view image) {
    berth::manifest_format::Header header;
    std::vector<uint64_t> segments;
    if (image.size() < sizeof header)
        return segments;
    std::memcpy(&header, image.data(), sizeof header);
    if (header.segment_count > 8 || header.segments_at > image.size() ||
        image.size() - header.segments_at < header.segment_count * sizeof(uint64_t))
        return segments;
    segments.resize(header.segment_count);
    if (segments.empty())
        return segments;
    std::memcpy(segments.data(), image.data() + header.segments_at,
                segments.size() * sizeof(uint64_t));
    return segments;
}

std::string good_image() {
    berth::ManifestParts parts;
    parts.segment_bytes = {1 << 16};
    parts.fingerprint_json = "{}";
    parts.config_json = "{}";
    parts.entries.push_back({"a", berth::DType::kF32, {4, 8}, 0, 256, 128, {1, 2}, ""});
    parts.entries.push_back({"b", berth::DType::kF4, {4}, 0, 0, 2, {3, 4}, ""});
    parts.entries.push_back({"c", berth::DType::kF32, {4, 8}, 0, 256, 128, {1, 2}, "a"});
    auto fd = berth::write_manifest(parts);
    if (!fd)
        std::abort();
    std::string image(static_cast<size_t>(::lseek(fd->get(), 0, SEEK_END)), '\0');
    if (::pread(fd->get(), image.data(), image.size(), 0) != static_cast<ssize_t>(image.size()))
        std::abort();
    return image;
}

// Three bytes of input a change: two for the place, one for the value.
std::string bent_image(const uint8_t* data, size_t size) {
    static const std::string kGood = good_image();
    std::string image = kGood;
    for (size_t at = 0; at + 3 <= size; at += 3)
        image[(data[at] | size_t{data[at + 1]} << 8) % image.size()] =
            static_cast<char>(data[at + 2]);
    return image;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0)
        return 0;
    bool is_bent = (data[0] & 1) != 0;
    std::string image = is_bent ? bent_image(data + 1, size - 1)
                                : std::string(reinterpret_cast<const char*>(data), size);
    // What nearly every random image would fail at.
    if (!is_bent && size >= sizeof(berth::manifest_format::Header)) {
        auto* header = reinterpret_cast<berth::manifest_format::Header*>(image.data());
        header->magic = berth::manifest_format::kMagic;
        header->version = berth::manifest_format::kVersion;
        header->file_bytes = size;
    }
    berth::UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (::write(fd.get(), image.data(), image.size()) != static_cast<ssize_t>(image.size()) ||
        ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) != 0)
        return 0;
    auto read_only = fd.reopen(O_RDONLY);
    if (!read_only)
        return 0;
    auto segments = segments_of(image);
    auto manifest = berth::Manifest::open(*read_only, segments);
    if (!manifest)
        return 0;
    uint64_t seen = manifest->config_json().size() + manifest->fingerprint_json().size();
    for (size_t index = 0; index < manifest->size(); ++index) {
        berth::TensorView tensor = manifest->at(index);
        if (tensor.offset + tensor.bytes > segments[tensor.segment])
            std::abort();
        if (manifest->find(tensor.name) != static_cast<int64_t>(index))
            std::abort();
        for (uint64_t axis : tensor.shape)
            seen += axis;
    }
    return seen == UINT64_MAX ? 1 : 0;
}
