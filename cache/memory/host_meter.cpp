// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/host_meter.h"

#include "base/unique_fd.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace berth {

namespace {

enum class Kind { kOther, kGrant, kWeights };

struct Range {
    uint64_t bytes = 0;
    Kind kind = Kind::kOther;
};

// "7f00-7f10 rw-s 00000000 00:01 1025   /memfd:berth-grant:77 (deleted)"; nullopt for smaps' other
// lines, whose first word is a name and ends in a colon.
std::optional<Range> parse_range(std::string_view line) {
    uint64_t first = 0;
    uint64_t last = 0;
    const char* end = line.data() + line.size();
    auto dash = std::from_chars(line.data(), end, first, 16);
    if (dash.ec != std::errc{} || dash.ptr == end || *dash.ptr != '-')
        return std::nullopt;
    auto space = std::from_chars(dash.ptr + 1, end, last, 16);
    if (space.ec != std::errc{} || space.ptr == end || *space.ptr != ' ' || last < first)
        return std::nullopt;
    Range range{last - first, Kind::kOther};
    if (line.find(" /memfd:berth-grant:") != std::string_view::npos)
        range.kind = Kind::kGrant;
    else if (line.find(" /memfd:berth-weights") != std::string_view::npos)
        range.kind = Kind::kWeights;
    return range;
}

uint64_t parse_kib(std::string_view line) {
    uint64_t kib = 0;
    size_t digit = line.find_first_of("0123456789");
    if (digit != std::string_view::npos)
        std::from_chars(line.data() + digit, line.data() + line.size(), kib);
    return kib << 10;
}

Result<HostUsage> read_usage(int pid, std::string_view file) {
    auto text = read_file(fmt::format("/proc/{}/{}", pid, file), size_t{256} << 20);
    if (!text) {
        if (text.error().source == ENOENT || text.error().source == ESRCH)
            return fail(ErrorCode::kNotFound, fmt::format("there is no process {}", pid));
        return fail(std::move(text).error());
    }
    HostUsage usage;
    Kind current = Kind::kOther;
    std::string_view rest = *text;
    while (!rest.empty()) {
        size_t end = rest.find('\n');
        std::string_view line = rest.substr(0, end);
        rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
        if (auto range = parse_range(line)) {
            current = range->kind;
            usage.grant_bytes += current == Kind::kGrant ? range->bytes : 0;
            usage.weights_bytes += current == Kind::kWeights ? range->bytes : 0;
        } else if (current == Kind::kWeights && line.starts_with("Pss:")) {
            usage.weights_pss_bytes += parse_kib(line);
        }
    }
    return usage;
}

} // namespace

Result<HostUsage> host_usage(int pid) {
    return read_usage(pid, "maps");
}
Result<HostUsage> host_usage_shared(int pid) {
    return read_usage(pid, "smaps");
}

} // namespace berth
