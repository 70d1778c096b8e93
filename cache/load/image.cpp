// SPDX-License-Identifier: Apache-2.0
#include "cache/load/image.h"

#include "cache/checkpoint/fault.h"
#include "cache/load/image_format.h"
#include "cache/weights/manifest.h"
#include "cache/weights/manifest_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

namespace berth {

using image_format::Header;
using image_format::SegmentPlace;

namespace {

constexpr std::string_view kRemedy =
    "delete the image and write it again from a load of the checkpoint";

// Reads an image's parts in order; each part is checked before the next is believed.
class ImageOpener {
  public:
    explicit ImageOpener(const std::string& path) { image_.path = path; }

    Result<Image> open() {
        fd_ = UniqueFd(::open(image_.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
        if (!fd_)
            return fail_errno(image_.path);
        BERTH_TRY(look());
        BERTH_TRY(read_header());
        BERTH_TRY(read_table());
        BERTH_TRY(check_size());
        BERTH_TRY(read_manifest());
        BERTH_TRY(check_padding());
        return std::move(image_);
    }

  private:
    tl::unexpected<Error> refuse(std::string_view reason, std::string_view found,
                                 std::string_view expected,
                                 ErrorCode code = ErrorCode::kCorrupt) const {
        return fail_fault({reason, image_.path, "", found, expected, kRemedy, code});
    }

    Status look() {
        struct stat facts{};
        if (::fstat(fd_.get(), &facts) != 0)
            return fail_errno(image_.path);
        if (!S_ISREG(facts.st_mode))
            return refuse("NoImage", "something that is no file", "an image of a weight set");
        image_.file.name = image_.path;
        image_.file.path = image_.path;
        image_.file.bytes = static_cast<uint64_t>(facts.st_size);
        image_.file.mtime_ns =
            int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
        return {};
    }

    Status read(std::span<char> to, uint64_t offset) const {
        for (size_t done = 0; done < to.size();) {
            ssize_t got = ::pread(fd_.get(), to.data() + done, to.size() - done,
                                  static_cast<off_t>(offset + done));
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0)
                return fail_errno(fmt::format("{}: read of {} bytes at offset {}", image_.path,
                                              to.size(), offset));
            if (got == 0)
                return refuse("TruncatedImage", fmt::format("an end at byte {}", offset + done),
                              fmt::format("{} bytes at {}", to.size(), offset));
            done += static_cast<size_t>(got);
        }
        return {};
    }

    Status read_header() {
        BERTH_TRY(read({reinterpret_cast<char*>(&header_), sizeof header_}, 0));
        if (header_.magic != image_format::kMagic)
            return refuse("NoImage", fmt::format("the magic number {:#018x}", header_.magic),
                          fmt::format("{:#018x}, an image of a weight set", image_format::kMagic));
        if (header_.version != image_format::kVersion)
            return refuse("ImageVersion", fmt::format("an image of format {}", header_.version),
                          fmt::format("format {}", image_format::kVersion), ErrorCode::kMismatch);
        if (header_.segment_count > manifest_format::kSegmentsMax ||
            header_.header_bytes != image_format::header_bytes_for(header_.segment_count))
            return refuse("CorruptImage",
                          fmt::format("a header of {} bytes for {} segments", header_.header_bytes,
                                      header_.segment_count),
                          "a whole page or a few, as the segments need");
        std::string all(header_.header_bytes, '\0');
        BERTH_TRY(read(all, 0));
        table_.resize(header_.segment_count);
        std::memcpy(table_.data(), all.data() + sizeof(Header),
                    table_.size() * sizeof(SegmentPlace));
        Header blank = header_;
        blank.header_checksum_low = blank.header_checksum_high = 0;
        std::memcpy(all.data(), &blank, sizeof blank);
        if (checksum_of(std::as_bytes(std::span(all))) !=
            Checksum{header_.header_checksum_low, header_.header_checksum_high})
            return refuse("CorruptImage", "a header with other bytes than its checksum's",
                          "the header as it was written");
        return {};
    }

    // The header is as it was written; whether it was written right is looked at all the same.
    Status read_table() {
        auto bad = [&](std::string_view what) {
            return refuse("CorruptImage", what, "manifest and segments one behind the other");
        };
        if (header_.manifest_at != header_.header_bytes ||
            header_.manifest_bytes > manifest_format::kFileBytesMax)
            return bad("a manifest out of place");
        uint64_t end =
            header_.manifest_at + round_up(header_.manifest_bytes, image_format::kAlignment);
        for (const SegmentPlace& place : table_) {
            uint64_t aligned = round_up(place.bytes, image_format::kAlignment);
            if (place.at != end || place.bytes == 0 || aligned < place.bytes ||
                __builtin_add_overflow(end, aligned, &end))
                return bad("a segment out of place");
            image_.segments.push_back({0, place.at, place.bytes});
        }
        if (end != header_.file_bytes)
            return bad(fmt::format("{} bytes of parts in a file of {}", end, header_.file_bytes));
        return {};
    }

    Status check_size() const {
        std::string found = fmt::format("{} bytes", image_.file.bytes);
        std::string expected = fmt::format("{} bytes, as its header says", header_.file_bytes);
        if (image_.file.bytes < header_.file_bytes)
            return refuse("TruncatedImage", found, expected);
        if (image_.file.bytes > header_.file_bytes)
            return refuse("TrailingBytes", found, expected);
        return {};
    }

    Status read_manifest() {
        std::string bytes(header_.manifest_bytes, '\0');
        BERTH_TRY(read(bytes, header_.manifest_at));
        if (checksum_of(std::as_bytes(std::span(bytes))) !=
            Checksum{header_.manifest_checksum_low, header_.manifest_checksum_high})
            return refuse("CorruptImage", "a manifest with other bytes than its checksum's",
                          "the manifest as it was written");
        BERTH_ASSIGN(image_.manifest, seal_manifest(bytes));
        auto manifest = Manifest::open(image_.manifest, image_.segment_bytes());
        if (!manifest)
            return fail_in(image_.path, std::move(manifest).error());
        image_.fingerprint = manifest->fingerprint();
        image_.fingerprint_json = manifest->fingerprint_json();
        image_.tensors = manifest->size();
        image_.made_for = {text_of(header_.layout), text_of(header_.device_kind),
                           text_of(header_.compute_capability)};
        if (image_.fingerprint != std::string_view(header_.fingerprint, sizeof header_.fingerprint))
            return refuse("CorruptImage", "a manifest of the fingerprint " + image_.fingerprint,
                          "the fingerprint that the header has");
        return {};
    }

    // What nobody wrote is nobody's: between the parts there are zeros.
    Status check_padding() const {
        BERTH_TRY(check_zeros(header_.manifest_at + header_.manifest_bytes));
        for (const SegmentPlace& place : table_)
            BERTH_TRY(check_zeros(place.at + place.bytes));
        return {};
    }
    // From a part's end to the next one's begin.
    Status check_zeros(uint64_t from) const {
        std::string padding(round_up(from, image_format::kAlignment) - from, '\0');
        BERTH_TRY(read(padding, from));
        size_t other = padding.find_first_not_of('\0');
        if (other == std::string::npos)
            return {};
        return refuse("CorruptImage",
                      fmt::format("the byte {:#04x} at offset {}, between two parts",
                                  static_cast<unsigned char>(padding[other]), from + other),
                      "zeros there");
    }

    template <size_t N>
    static std::string text_of(const char (&field)[N]) {
        return std::string(field, ::strnlen(field, N));
    }

    UniqueFd fd_;
    Header header_{};
    std::vector<SegmentPlace> table_;
    Image image_;
};

} // namespace

std::vector<uint64_t> Image::segment_bytes() const {
    std::vector<uint64_t> sizes;
    for (const FiledSegment& segment : segments)
        sizes.push_back(segment.bytes);
    return sizes;
}

Result<Image> open_image(const std::string& path) {
    return ImageOpener(path).open();
}

bool begins_as_image(const std::string& path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    uint64_t magic = 0;
    return fd && ::pread(fd.get(), &magic, sizeof magic, 0) == ssize_t{sizeof magic} &&
           magic == image_format::kMagic;
}

Status check_image(const Image& image, const ImageWanted& wanted) {
    if (!wanted.layout.empty() && !image.made_for.layout.empty() &&
        image.made_for.layout != wanted.layout)
        return fail_fault(
            {"LayoutMismatch", image.path, "", fmt::format("layout '{}'", image.made_for.layout),
             fmt::format("layout '{}'", wanted.layout), kRemedy, ErrorCode::kMismatch});
    if (!wanted.fingerprint.empty() && image.fingerprint != wanted.fingerprint)
        return fail_fault({"FingerprintMismatch", image.path, "",
                           "the weight set " + image.fingerprint, wanted.fingerprint,
                           "load the checkpoint, or another image", ErrorCode::kMismatch});
    return {};
}

Result<LoadedSet> run_image_load(const Image& image, Device& device, int threads,
                                 ReaderOptions reader, const StreamProgress& progress) {
    BERTH_TRY(check_device(image.made_for, device, image.path));
    FiledSet set{image.path, {image.file}, image.segments, image.manifest};
    return load_filed_set(set, device, threads, reader, progress);
}

Result<LoadedSet> run_image_load(const std::string& path, const ImageWanted& wanted, Device& device,
                                 int threads, ReaderOptions reader,
                                 const StreamProgress& progress) {
    BERTH_ASSIGN(Image image, open_image(path));
    BERTH_TRY(check_image(image, wanted));
    return run_image_load(image, device, threads, reader, progress);
}

} // namespace berth
