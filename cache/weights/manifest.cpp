// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/manifest.h"

#include "cache/weights/manifest_format.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include <algorithm>

namespace berth {

using manifest_format::Entry;
using manifest_format::Extension;
using manifest_format::Extra;
using manifest_format::Header;
using manifest_format::kNotAlias;
using manifest_format::TextRange;

static_assert(kTensorRankMax == sizeof(Entry::shape) / sizeof(uint64_t));

std::optional<uint64_t> extent_of(std::span<const uint64_t> shape,
                                  std::span<const uint64_t> strides) {
    if (!strides.empty() && strides.size() != shape.size())
        return std::nullopt;
    if (std::find(shape.begin(), shape.end(), uint64_t{0}) != shape.end())
        return 0;
    uint64_t last = 0;
    uint64_t dense = 1;
    bool overflow = false;
    for (size_t axis = shape.size(); axis-- > 0;) {
        uint64_t reach = 0;
        uint64_t stride = strides.empty() ? dense : strides[axis];
        overflow = __builtin_mul_overflow(shape[axis] - 1, stride, &reach) ||
                   __builtin_add_overflow(last, reach, &last) ||
                   __builtin_mul_overflow(dense, shape[axis], &dense) || overflow;
    }
    uint64_t extent = 0;
    if (__builtin_add_overflow(last, uint64_t{1}, &extent) || overflow)
        return std::nullopt;
    return extent;
}

struct Manifest::Mapped {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
    const Entry* entries = nullptr;

    Mapped() = default;
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;
    ~Mapped() {
        if (data != nullptr)
            ::munmap(const_cast<std::byte*>(data), bytes);
    }

    const Header& header() const { return *reinterpret_cast<const Header*>(data); }
    const uint64_t* segments() const {
        return reinterpret_cast<const uint64_t*>(data + header().segments_at);
    }
    std::string_view text(uint64_t at, uint64_t length) const {
        return {reinterpret_cast<const char*>(data + at), length};
    }
    std::string_view text(const TextRange& range) const { return text(range.at, range.bytes); }
    std::string_view name(const Entry& entry) const {
        return text(entry.name_at, entry.name_bytes);
    }
    // Null for a manifest of version 1.
    const Extension* extension() const {
        return header().version == manifest_format::kExtendedVersion
                   ? reinterpret_cast<const Extension*>(data + sizeof(Header))
                   : nullptr;
    }
    std::span<const Extra> extras() const {
        const Extension* more = extension();
        if (more == nullptr)
            return {};
        return {reinterpret_cast<const Extra*>(data + more->extras_at), more->extra_count};
    }
    const Extra* extra_of(uint64_t index) const {
        std::span<const Extra> all = extras();
        auto found =
            std::lower_bound(all.begin(), all.end(), index, [](const Extra& extra, uint64_t entry) {
                return extra.entry < entry;
            });
        return found != all.end() && found->entry == index ? &*found : nullptr;
    }
    bool holds(uint64_t at, uint64_t length) const { return at <= bytes && length <= bytes - at; }

    Status check(std::span<const uint64_t> segment_bytes) const;
    Status check_extension() const;
    Status check_entry(uint64_t index) const;
    Status check_alias(uint64_t index) const;
};

namespace {

constexpr uint64_t kDigestDigits = 64;

tl::unexpected<Error> corrupt(std::string message) {
    return fail(ErrorCode::kCorrupt, "the manifest " + std::move(message), "CorruptManifest");
}

// Whether the shape's elements fill exactly `bytes`; opaque elements have no size to check.
bool shape_fills(const Entry& entry, const Extra* extra) {
    auto dtype = static_cast<DType>(entry.dtype);
    if (dtype == DType::kOpaque)
        return true;
    uint64_t bits = bits_of(dtype);
    bool overflow = false;
    if (extra != nullptr && (extra->flags & manifest_format::kFlagStrided) != 0) {
        // A view lies within its storage; elements of less than a byte have no address.
        auto extent = extent_of({entry.shape, entry.rank}, {extra->strides, entry.rank});
        uint64_t end = 0;
        overflow = !extent || __builtin_add_overflow(*extent, extra->storage_offset, &end) ||
                   __builtin_mul_overflow(end, bits / 8, &end);
        return !overflow && bits % 8 == 0 && end <= entry.bytes;
    }
    for (size_t axis = 0; axis < entry.rank; ++axis)
        overflow = __builtin_mul_overflow(bits, entry.shape[axis], &bits) || overflow;
    return !overflow && bits % 8 == 0 && bits / 8 == entry.bytes;
}

} // namespace

Status Manifest::Mapped::check(std::span<const uint64_t> segment_bytes) const {
    const Header& head = header();
    if (head.magic != manifest_format::kMagic)
        return corrupt("does not start with its magic number: this descriptor is something else");
    if (head.version != manifest_format::kVersion &&
        head.version != manifest_format::kExtendedVersion)
        return fail(ErrorCode::kMismatch,
                    fmt::format("the manifest has format {}, expected {} or {}: its producer is "
                                "of another version of Berth; load the model again",
                                head.version, manifest_format::kVersion,
                                manifest_format::kExtendedVersion),
                    "ManifestVersion");
    if (head.file_bytes != bytes)
        return corrupt(
            fmt::format("says it has {} bytes, but {} are there", head.file_bytes, bytes));
    if (head.segment_count > manifest_format::kSegmentsMax || head.segments_at % 8 != 0 ||
        !holds(head.segments_at, head.segment_count * sizeof(uint64_t)))
        return corrupt("has its table of segments out of bounds");
    if (head.entry_count > bytes / sizeof(Entry) || head.entry_count >= kNotAlias ||
        head.entries_at % 8 != 0 || !holds(head.entries_at, head.entry_count * sizeof(Entry)))
        return corrupt("has its table of tensors out of bounds");
    for (const TextRange& range : {head.fingerprint_json, head.fingerprint, head.config_json})
        if (!holds(range.at, range.bytes))
            return corrupt("has a text out of bounds");
    if (segment_bytes.size() != head.segment_count)
        return corrupt(fmt::format("describes {} segments, but {} came with it", head.segment_count,
                                   segment_bytes.size()));
    for (size_t index = 0; index < segment_bytes.size(); ++index)
        if (segments()[index] != segment_bytes[index])
            return corrupt(fmt::format("says that segment {} has {} bytes, but it has {}", index,
                                       segments()[index], segment_bytes[index]));
    if (head.version == manifest_format::kExtendedVersion)
        BERTH_TRY(check_extension());
    for (uint64_t index = 0; index < head.entry_count; ++index)
        BERTH_TRY(check_entry(index));
    return {};
}

Status Manifest::Mapped::check_extension() const {
    if (!holds(sizeof(Header), sizeof(Extension)))
        return corrupt("ends within its extension");
    const Extension& more = *extension();
    if (more.extra_count > header().entry_count || more.extras_at % 8 != 0 ||
        !holds(more.extras_at, more.extra_count * sizeof(Extra)))
        return corrupt("has its table of extras out of bounds");
    for (const TextRange& range : {more.canary_input, more.canary_digest})
        if (!holds(range.at, range.bytes))
            return corrupt("has its canary out of bounds");
    if (more.canary_digest.bytes != 0 && more.canary_digest.bytes != kDigestDigits)
        return corrupt(fmt::format("has a canary's digest of {} digits, expected {}",
                                   more.canary_digest.bytes, kDigestDigits));
    uint64_t next = 0;
    for (const Extra& extra : extras()) {
        if (extra.entry < next || extra.entry >= header().entry_count)
            return corrupt("has an extra of no entry, or out of order");
        next = uint64_t{extra.entry} + 1;
    }
    return {};
}

Status Manifest::Mapped::check_entry(uint64_t index) const {
    const Entry& entry = entries[index];
    if (entry.name_bytes == 0 || !holds(entry.name_at, entry.name_bytes))
        return corrupt(fmt::format("has entry {} with its name out of bounds", index));
    auto bad = [&](std::string_view why) {
        return corrupt(fmt::format("has tensor '{}' {}", name(entry), why));
    };
    if (index > 0 && name(entries[index - 1]) >= name(entry))
        return bad("out of order or twice");
    if (entry.rank > kTensorRankMax)
        return bad(
            fmt::format("with {} dimensions, at most {} are known", entry.rank, kTensorRankMax));
    if (entry.dtype > static_cast<uint8_t>(DType::kU64))
        return bad(fmt::format("with the unknown element type {}", entry.dtype));
    if (entry.segment >= header().segment_count)
        return bad(fmt::format("in segment {} of {}", entry.segment, header().segment_count));
    uint64_t room = segments()[entry.segment];
    if (entry.offset > room || entry.bytes > room - entry.offset)
        return bad(
            fmt::format("at bytes {}+{} of a segment of {}", entry.offset, entry.bytes, room));
    if (entry.offset % kTensorAlignment != 0)
        return bad(fmt::format("at offset {}, no multiple of {}", entry.offset, kTensorAlignment));
    if (!shape_fills(entry, extra_of(index)))
        return bad(fmt::format("with {} bytes, which its shape does not have", entry.bytes));
    if (entry.alias_of == kNotAlias)
        return {};
    return check_alias(index);
}

Status Manifest::Mapped::check_alias(uint64_t index) const {
    const Entry& entry = entries[index];
    auto bad = [&](std::string_view why) {
        return corrupt(fmt::format("has tensor '{}', an alias {}", name(entry), why));
    };
    if (entry.alias_of >= header().entry_count)
        return bad("of an entry that does not exist");
    const Entry& target = entries[entry.alias_of];
    if (target.alias_of != kNotAlias)
        return bad("of an alias");
    if (target.segment != entry.segment || target.offset != entry.offset ||
        target.bytes != entry.bytes)
        return bad("that lies elsewhere than its tensor");
    auto is_state = [](const Extra* extra) {
        return extra != nullptr && (extra->flags & manifest_format::kFlagState) != 0;
    };
    if (is_state(extra_of(index)) != is_state(extra_of(entry.alias_of)))
        return bad("of another kind than its tensor");
    return {};
}

Manifest::Manifest(Manifest&&) noexcept = default;
Manifest& Manifest::operator=(Manifest&&) noexcept = default;
Manifest::~Manifest() = default;

Result<Manifest> Manifest::open(const UniqueFd& fd, std::span<const uint64_t> segment_bytes) {
    struct stat facts{};
    if (::fstat(fd.get(), &facts) != 0)
        return fail_errno("the manifest's descriptor");
    auto bytes = static_cast<uint64_t>(facts.st_size);
    if (bytes < sizeof(Header) || bytes > manifest_format::kFileBytesMax)
        return corrupt(fmt::format("has {} bytes, expected {} to {}", bytes, sizeof(Header),
                                   manifest_format::kFileBytesMax));
    // Unsealed bytes could change after the check.
    int seals = ::fcntl(fd.get(), F_GET_SEALS);
    constexpr int kNeeded = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
    if (seals < 0 || (seals & kNeeded) != kNeeded)
        return corrupt("is not sealed against writing, growing and shrinking");
    void* address =
        ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), off_t{0});
    if (address == MAP_FAILED)
        return fail_errno("map the manifest");
    Manifest manifest;
    manifest.mapped_ = std::make_unique<Mapped>();
    manifest.mapped_->data = static_cast<const std::byte*>(address);
    manifest.mapped_->bytes = bytes;
    const Header& header = manifest.mapped_->header();
    if (header.entries_at <= bytes)
        manifest.mapped_->entries =
            reinterpret_cast<const Entry*>(manifest.mapped_->data + header.entries_at);
    BERTH_TRY(manifest.mapped_->check(segment_bytes));
    return manifest;
}

size_t Manifest::size() const {
    return mapped_ ? mapped_->header().entry_count : 0;
}

TensorView Manifest::at(size_t index) const {
    const Entry& entry = mapped_->entries[index];
    TensorView view;
    view.name = mapped_->name(entry);
    view.dtype = static_cast<DType>(entry.dtype);
    view.shape = {entry.shape, entry.rank};
    view.segment = entry.segment;
    view.offset = entry.offset;
    view.bytes = entry.bytes;
    view.checksum = {entry.checksum_low, entry.checksum_high};
    if (entry.alias_of != kNotAlias)
        view.alias_of = mapped_->name(mapped_->entries[entry.alias_of]);
    const Extra* extra = mapped_->extra_of(index);
    if (extra == nullptr)
        return view;
    if ((extra->flags & manifest_format::kFlagState) != 0)
        view.kind = TensorKind::kState;
    if ((extra->flags & manifest_format::kFlagStrided) != 0) {
        view.strides = {extra->strides, entry.rank};
        view.storage_offset = extra->storage_offset;
    }
    return view;
}

int64_t Manifest::find(std::string_view name) const {
    size_t low = 0;
    size_t high = size();
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = mapped_->name(mapped_->entries[middle]).compare(name);
        if (order == 0)
            return static_cast<int64_t>(middle);
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

std::string_view Manifest::fingerprint_json() const {
    return mapped_ ? mapped_->text(mapped_->header().fingerprint_json) : std::string_view();
}

std::string_view Manifest::fingerprint() const {
    return mapped_ ? mapped_->text(mapped_->header().fingerprint) : std::string_view();
}

std::string_view Manifest::config_json() const {
    return mapped_ ? mapped_->text(mapped_->header().config_json) : std::string_view();
}

ManifestCanary Manifest::canary() const {
    const Extension* more = mapped_ ? mapped_->extension() : nullptr;
    if (more == nullptr)
        return {};
    return {mapped_->text(more->canary_input), mapped_->text(more->canary_digest)};
}

bool Manifest::has_states() const {
    if (!mapped_)
        return false;
    std::span<const Extra> extras = mapped_->extras();
    return std::any_of(extras.begin(), extras.end(), [](const Extra& extra) {
        return (extra.flags & manifest_format::kFlagState) != 0;
    });
}

uint64_t Manifest::weight_bytes() const {
    return mapped_ ? mapped_->header().weight_bytes : 0;
}

} // namespace berth
