// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/safetensors.h"

#include "base/hash.h"
#include "base/unique_fd.h"
#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/not_fetched.h"
#include "cache/checkpoint/strict_json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>

namespace berth {

namespace {

constexpr std::string_view kFetchAgain = "the file is damaged: download or write it again";

std::optional<uint64_t> as_size(const json::value& from) {
    if (const int64_t* number = from.if_int64(); number != nullptr && *number >= 0)
        return static_cast<uint64_t>(*number);
    if (const uint64_t* number = from.if_uint64())
        return *number;
    return std::nullopt;
}

// One tensor's entry; places are relative to the data until `data_offset` is added.
class EntryReader {
  public:
    EntryReader(std::string_view file, std::string_view name, uint64_t data_offset)
        : file_(file), name_(name), data_offset_(data_offset) {}

    Result<StoredTensor> read(const json::value& from) {
        const json::object* object = from.if_object();
        if (object == nullptr)
            return bad(json::kind_name(from), "an object with dtype, shape and data_offsets");
        for (const auto& [key, ignored] : *object)
            if (key != "dtype" && key != "shape" && key != "data_offsets")
                return bad(fmt::format("the unknown field '{}'", std::string_view(key)),
                           "dtype, shape and data_offsets alone");
        StoredTensor tensor;
        tensor.name = name_;
        const json::value* dtype = object->if_contains("dtype");
        if (dtype == nullptr || !dtype->is_string())
            return bad("no dtype", "a string such as \"BF16\"");
        tensor.dtype_name = std::string_view(dtype->as_string());
        tensor.dtype = dtype_from(tensor.dtype_name);
        BERTH_TRY(read_shape(object->if_contains("shape"), tensor));
        BERTH_TRY(read_place(object->if_contains("data_offsets"), tensor));
        BERTH_TRY(check_size(tensor));
        return tensor;
    }

  private:
    tl::unexpected<Error> bad(std::string_view found, std::string_view expected,
                              std::string_view reason = "BadHeader") const {
        return fail_fault({reason, file_, name_, found, expected, kFetchAgain});
    }

    Status read_shape(const json::value* from, StoredTensor& tensor) const {
        if (from == nullptr || !from->is_array())
            return bad("no shape", "a list of whole numbers");
        for (const json::value& axis : from->get_array()) {
            auto size = as_size(axis);
            if (!size)
                return bad(fmt::format("shape {}", json::serialize(*from)),
                           "whole numbers of zero or more");
            tensor.shape.push_back(*size);
        }
        return {};
    }

    Status read_place(const json::value* from, StoredTensor& tensor) const {
        const json::array* pair = from != nullptr ? from->if_array() : nullptr;
        if (pair == nullptr || pair->size() != 2)
            return bad("no data_offsets", "two whole numbers, begin and end");
        auto begin = as_size((*pair)[0]);
        auto end = as_size((*pair)[1]);
        if (!begin || !end || *end < *begin || *end > UINT64_MAX - data_offset_)
            return bad(fmt::format("data offsets {}", json::serialize(*from)),
                       "begin and end with begin not above end");
        tensor.offset = *begin + data_offset_;
        tensor.bytes = *end - *begin;
        return {};
    }

    // Elements times their width must be the bytes; elements of unknown types have no width.
    Status check_size(const StoredTensor& tensor) const {
        if (tensor.dtype == DType::kOpaque)
            return {};
        uint64_t bits = bits_of(tensor.dtype);
        bool overflow = false;
        for (uint64_t axis : tensor.shape)
            overflow = __builtin_mul_overflow(bits, axis, &bits) || overflow;
        std::string what = fmt::format("{} {}", tensor.dtype_name, shape_text(tensor.shape));
        if (overflow)
            return bad(what, "a shape whose bytes fit in 64 bits", "ShapeOverflow");
        if (bits % 8 != 0)
            return bad(fmt::format("{}, an odd number of elements", what),
                       "whole bytes: two elements of four bits share one", "OddWidth");
        if (bits / 8 != tensor.bytes)
            return bad(fmt::format("{} bytes (data offsets {}..{})", tensor.bytes,
                                   tensor.offset - data_offset_,
                                   tensor.offset - data_offset_ + tensor.bytes),
                       fmt::format("{} bytes for {}", bits / 8, what), "ShapeMismatch");
        return {};
    }

    std::string_view file_;
    std::string_view name_;
    uint64_t data_offset_;
};

Status read_metadata(const json::value& from, std::string_view file, SafetensorsHeader& header) {
    const json::object* object = from.if_object();
    if (object == nullptr)
        return fail_fault({"BadHeader", file, "",
                           fmt::format("__metadata__ as {}", json::kind_name(from)),
                           "an object of strings", kFetchAgain});
    for (const auto& [key, value] : *object) {
        if (!value.is_string())
            return fail_fault({"BadHeader", file, "",
                               fmt::format("__metadata__ field '{}' as {}", std::string_view(key),
                                           json::kind_name(value)),
                               "a string", kFetchAgain});
        header.metadata.emplace(key, std::string_view(value.get_string()));
    }
    return {};
}

// Tensors must follow each other without overlap or hole and end where the file ends. They are
// sorted by place already.
Status check_places(const SafetensorsHeader& header, std::string_view file,
                    const SafetensorsOptions& options) {
    uint64_t at = header.data_offset;
    const StoredTensor* before = nullptr;
    for (const StoredTensor& tensor : header.tensors) {
        uint64_t begin = tensor.offset - header.data_offset;
        uint64_t end_before = at - header.data_offset;
        std::string name_before = before != nullptr ? before->name : "the header";
        if (tensor.offset < at)
            return fail_fault(
                {"OverlappingTensors", file, tensor.name,
                 fmt::format("data offsets that begin at {}", begin),
                 fmt::format("{}, where '{}' ends: they overlap", end_before, name_before),
                 kFetchAgain});
        if (tensor.offset > at)
            return fail_fault({"HoleInFile", file, tensor.name,
                               fmt::format("data offsets that begin at {}", begin),
                               fmt::format("{}, where '{}' ends: nothing says what lies between",
                                           end_before, name_before),
                               kFetchAgain});
        at += tensor.bytes;
        before = &tensor;
        if (at > header.file_bytes)
            return fail_fault(
                {"TruncatedFile", file, tensor.name,
                 fmt::format("a file of {} bytes", header.file_bytes),
                 fmt::format("at least {}: this tensor ends {} bytes behind the file's end", at,
                             at - header.file_bytes),
                 "the download is incomplete: download the file again"});
    }
    if (at < header.file_bytes && !options.allow_trailing)
        return fail_fault(
            {"TrailingBytes", file, "", fmt::format("a file of {} bytes", header.file_bytes),
             fmt::format("{}: {} bytes follow the last tensor", at, header.file_bytes - at),
             "download the file again, or allow it with --allow-trailing"});
    return {};
}

Status read_at(int fd, char* to, size_t bytes, off_t offset, std::string_view file) {
    while (bytes > 0) {
        ssize_t got = ::pread(fd, to, bytes, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(fmt::format("{}: read at offset {}", file, offset));
        if (got == 0)
            return fail_fault({"TruncatedFile", file, "", fmt::format("its end at {}", offset),
                               fmt::format("{} bytes more", bytes),
                               "the file became shorter while it was read"});
        to += got;
        bytes -= static_cast<size_t>(got);
        offset += got;
    }
    return {};
}

Status check_header_length(uint64_t length, uint64_t file_bytes, std::string_view first,
                           std::string_view file) {
    BERTH_TRY(check_is_fetched(first, file, "safetensors"));
    if (length == 0)
        return fail_fault({"BadHeader", file, "", "a header of 0 bytes", "one that names tensors",
                           "room was made for the file but nothing written: download it again"});
    if (length > kHeaderBytesMax)
        return fail_fault({"BadHeader", file, "", fmt::format("a header of {} bytes", length),
                           fmt::format("at most {}", kHeaderBytesMax),
                           "this is not a safetensors file, or it is damaged"});
    if (length > file_bytes - 8)
        return fail_fault({"TruncatedFile", file, "", fmt::format("a file of {} bytes", file_bytes),
                           fmt::format("at least {} for its header alone", length + 8),
                           "the download is incomplete: download the file again"});
    return {};
}

} // namespace

std::string shape_text(const std::vector<uint64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t file_bytes,
                                                   std::string_view shown,
                                                   const SafetensorsOptions& options) {
    auto parsed = parse_strict(json, shown);
    if (!parsed) {
        Error error = parsed.error();
        if (error.reason == "DuplicateKey")
            error.reason = "DuplicateTensor";
        else
            error = Error{ErrorCode::kCorrupt, error.message + "; " + std::string(kFetchAgain),
                          "BadHeader", 0};
        return fail(std::move(error));
    }
    const json::object* object = parsed->if_object();
    if (object == nullptr)
        return fail_fault({"BadHeader", shown, "",
                           fmt::format("{} as its header", json::kind_name(*parsed)), "an object",
                           kFetchAgain});
    SafetensorsHeader header;
    header.file_bytes = file_bytes;
    header.data_offset = 8 + json.size();
    header.header_hash = sha256_hex(json);
    header.tensors.reserve(object->size());
    for (const auto& [key, value] : *object) {
        std::string_view name(key.data(), key.size());
        if (name == "__metadata__") {
            BERTH_TRY(read_metadata(value, shown, header));
            continue;
        }
        if (name.empty() || name.size() > UINT16_MAX)
            return fail_fault({"BadHeader", shown, "",
                               fmt::format("a tensor's name of {} bytes", name.size()),
                               "1 to 65535", kFetchAgain});
        BERTH_ASSIGN(StoredTensor tensor, EntryReader(shown, name, header.data_offset).read(value));
        header.tensors.push_back(std::move(tensor));
    }
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const StoredTensor& left, const StoredTensor& right) {
                  return std::tie(left.offset, left.bytes, left.name) <
                         std::tie(right.offset, right.bytes, right.name);
              });
    BERTH_TRY(check_places(header, shown, options));
    return header;
}

Result<SafetensorsHeader> read_safetensors_header(const std::string& path, std::string_view shown,
                                                  const SafetensorsOptions& options) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd && errno == ENOENT)
        return fail_fault({"MissingFile", shown, "", "a name without a file",
                           fmt::format("a file at {}", path),
                           "incomplete download, or a link whose target is gone: download it again",
                           ErrorCode::kNotFound});
    if (!fd)
        return fail_errno(path);
    struct stat facts{};
    if (::fstat(fd.get(), &facts) != 0)
        return fail_errno(path);
    if (!S_ISREG(facts.st_mode))
        return fail_fault({"NotAFile", shown, "", "something that is no regular file",
                           "a safetensors file", "check the path"});
    auto file_bytes = static_cast<uint64_t>(facts.st_size);
    if (file_bytes < sizeof(uint64_t))
        return fail_fault({"TruncatedFile", shown, "",
                           fmt::format("a file of {} bytes", file_bytes), "at least 8",
                           "the download is incomplete: download the file again"});
    std::string first(std::min<uint64_t>(file_bytes, kFirstBytes), '\0');
    BERTH_TRY(read_at(fd.get(), first.data(), first.size(), 0, shown));
    uint64_t length = 0;
    std::memcpy(&length, first.data(), sizeof length);
    BERTH_TRY(check_header_length(length, file_bytes, first, shown));
    std::string text(length, '\0');
    BERTH_TRY(read_at(fd.get(), text.data(), text.size(), 8, shown));
    BERTH_ASSIGN(SafetensorsHeader header,
                 parse_safetensors_header(text, file_bytes, shown, options));
    header.mtime_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
    return header;
}

} // namespace berth
