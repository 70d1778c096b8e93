// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/manifest.h"
#include "cache/weights/manifest_format.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

namespace berth {

using manifest_format::Entry;
using manifest_format::Extension;
using manifest_format::Extra;
using manifest_format::Header;
using manifest_format::kNotAlias;
using manifest_format::TextRange;

namespace {

tl::unexpected<Error> refuse(const ManifestEntry& entry, std::string_view why) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cannot write a manifest with tensor '{}' {}", entry.name, why));
}

// Grows one byte string; positions are from its start.
class Image {
  public:
    TextRange add_text(std::string_view text) {
        TextRange range{bytes_.size(), text.size()};
        bytes_.append(text);
        return range;
    }
    void resize(size_t bytes) { bytes_.resize(bytes); }
    template <typename T>
    void put(uint64_t at, const T& value) {
        std::memcpy(bytes_.data() + at, &value, sizeof(T));
    }
    const std::string& bytes() const { return bytes_; }

  private:
    std::string bytes_;
};

using Positions = std::map<std::string_view, uint32_t>;

Result<Entry> make_entry(const ManifestEntry& from, const Positions& positions, Image& image) {
    if (from.name.empty() || from.name.size() > UINT16_MAX)
        return refuse(from, "whose name is empty or longer than 65535 bytes");
    if (from.shape.size() > kTensorRankMax)
        return refuse(from, fmt::format("of {} dimensions, at most {} fit", from.shape.size(),
                                        kTensorRankMax));
    Entry entry{};
    TextRange name = image.add_text(from.name);
    entry.name_at = name.at;
    entry.name_bytes = static_cast<uint32_t>(name.bytes);
    entry.alias_of = kNotAlias;
    if (!from.alias_of.empty()) {
        auto target = positions.find(from.alias_of);
        if (target == positions.end())
            return refuse(from, fmt::format("as an alias of '{}', which it lacks", from.alias_of));
        entry.alias_of = target->second;
    }
    entry.segment = from.segment;
    entry.dtype = static_cast<uint8_t>(from.dtype);
    entry.rank = static_cast<uint8_t>(from.shape.size());
    entry.offset = from.offset;
    entry.bytes = from.bytes;
    entry.checksum_low = from.checksum.low;
    entry.checksum_high = from.checksum.high;
    std::copy(from.shape.begin(), from.shape.end(), entry.shape);
    return entry;
}

bool is_strided(const ManifestEntry& from) {
    return from.part_of_storage || !from.strides.empty() || from.storage_offset != 0;
}

bool needs_extension(const ManifestParts& parts) {
    return !parts.canary_digest.empty() ||
           std::any_of(parts.entries.begin(), parts.entries.end(), [](const ManifestEntry& entry) {
               return entry.kind == TensorKind::kState || is_strided(entry);
           });
}

Result<Extra> make_extra(const ManifestEntry& from, uint32_t index) {
    Extra extra{};
    extra.entry = index;
    if (from.kind == TensorKind::kState)
        extra.flags |= manifest_format::kFlagState;
    if (!is_strided(from))
        return extra;
    if (!from.strides.empty() && from.strides.size() != from.shape.size())
        return refuse(from, fmt::format("of {} dimensions and {} strides", from.shape.size(),
                                        from.strides.size()));
    extra.flags |= manifest_format::kFlagStrided;
    extra.storage_offset = from.storage_offset;
    uint64_t dense = 1;
    for (size_t axis = from.shape.size(); axis-- > 0;) {
        extra.strides[axis] = from.strides.empty() ? dense : from.strides[axis];
        dense *= from.shape[axis];
    }
    return extra;
}

// Behind the entries' names, where positions need not be known beforehand.
Status add_extension(const ManifestParts& parts, const std::vector<const ManifestEntry*>& sorted,
                     Image& image) {
    std::string extras;
    Extension extension{};
    for (size_t index = 0; index < sorted.size(); ++index) {
        if (sorted[index]->kind == TensorKind::kWeight && !is_strided(*sorted[index]))
            continue;
        BERTH_ASSIGN(Extra extra, make_extra(*sorted[index], static_cast<uint32_t>(index)));
        extras.append(reinterpret_cast<const char*>(&extra), sizeof extra);
        ++extension.extra_count;
    }
    image.add_text(std::string((8 - image.bytes().size() % 8) % 8, '\0'));
    extension.extras_at = image.add_text(extras).at;
    extension.canary_input = image.add_text(parts.canary_input);
    extension.canary_digest = image.add_text(parts.canary_digest);
    image.put(sizeof(Header), extension);
    return {};
}

Result<std::string> make_image(const ManifestParts& parts) {
    std::vector<const ManifestEntry*> sorted;
    for (const ManifestEntry& entry : parts.entries)
        sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(),
              [](const auto* left, const auto* right) { return left->name < right->name; });
    Positions positions;
    for (size_t index = 0; index < sorted.size(); ++index)
        if (!positions.emplace(sorted[index]->name, static_cast<uint32_t>(index)).second)
            return refuse(*sorted[index], "twice");

    Header header{};
    header.magic = manifest_format::kMagic;
    const bool extended = needs_extension(parts);
    header.version = extended ? manifest_format::kExtendedVersion : manifest_format::kVersion;
    header.segment_count = static_cast<uint32_t>(parts.segment_bytes.size());
    header.entry_count = sorted.size();
    header.segments_at = sizeof(Header) + (extended ? sizeof(Extension) : 0);
    header.entries_at = header.segments_at + parts.segment_bytes.size() * sizeof(uint64_t);

    Image image;
    image.resize(header.entries_at + sorted.size() * sizeof(Entry));
    for (size_t index = 0; index < parts.segment_bytes.size(); ++index)
        image.put(header.segments_at + index * sizeof(uint64_t), parts.segment_bytes[index]);
    for (size_t index = 0; index < sorted.size(); ++index) {
        BERTH_ASSIGN(Entry entry, make_entry(*sorted[index], positions, image));
        if (entry.alias_of == kNotAlias)
            header.weight_bytes += entry.bytes;
        image.put(header.entries_at + index * sizeof(Entry), entry);
    }
    if (extended)
        BERTH_TRY(add_extension(parts, sorted, image));
    header.fingerprint_json = image.add_text(parts.fingerprint_json);
    header.fingerprint = image.add_text(parts.fingerprint);
    header.config_json = image.add_text(parts.config_json);
    header.file_bytes = image.bytes().size();
    image.put(0, header);
    return image.bytes();
}

Status write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        ssize_t written = ::write(fd, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fail_errno("write the manifest");
        bytes.remove_prefix(static_cast<size_t>(written));
    }
    return {};
}

} // namespace

Result<UniqueFd> seal_manifest(std::string_view bytes) {
    UniqueFd fd(::memfd_create("berth-manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd)
        return fail_errno("memfd_create for the manifest");
    BERTH_TRY(write_all(fd.get(), bytes));
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) !=
        0)
        return fail_errno("seal the manifest");
    return fd.reopen(O_RDONLY);
}

Result<UniqueFd> write_manifest(const ManifestParts& parts) {
    BERTH_ASSIGN(std::string image, make_image(parts));
    BERTH_ASSIGN(UniqueFd read_only, seal_manifest(image));
    // What was written is read back through every check before anybody else sees it.
    BERTH_ASSIGN([[maybe_unused]] Manifest checked, Manifest::open(read_only, parts.segment_bytes));
    return read_only;
}

} // namespace berth
