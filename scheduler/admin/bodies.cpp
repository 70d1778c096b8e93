// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/bodies.h"

#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace berth::bodies {

namespace {

constexpr std::string_view kWhat = "the request's body";

Result<json::value> document_of(std::string_view body) {
    if (body.empty())
        return json::value(json::object());
    return json::parse(body, kWhat);
}

// "200ms", or a number of milliseconds.
Result<std::optional<Nanoseconds>> duration_field(json::Reader& reader, const char* field) {
    const json::value* value = reader.any(field);
    if (value == nullptr || value->is_null())
        return std::optional<Nanoseconds>();
    if (value->is_string()) {
        BERTH_ASSIGN(Nanoseconds duration, parse_duration(std::string_view(value->get_string())));
        return std::optional(duration);
    }
    if (value->is_int64() && value->get_int64() >= 0 && value->get_int64() < 86'400'000)
        return std::optional<Nanoseconds>(std::chrono::milliseconds(value->get_int64()));
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: field '{}': expected a duration such as \"200ms\"", kWhat, field));
}

// "512Mi", or a number of bytes.
Result<std::optional<uint64_t>> bytes_field(json::Reader& reader, const char* field) {
    const json::value* value = reader.any(field);
    if (value == nullptr || value->is_null())
        return std::optional<uint64_t>();
    if (value->is_string()) {
        BERTH_ASSIGN(uint64_t bytes, parse_bytes(std::string_view(value->get_string())));
        return std::optional(bytes);
    }
    if (value->is_int64() && value->get_int64() >= 0)
        return std::optional(static_cast<uint64_t>(value->get_int64()));
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: field '{}': expected a size such as \"512Mi\"", kWhat, field));
}

// What every change may say.
template <typename Body>
void take_common(json::Reader& reader, Body& out) {
    out.reason = reader.string("reason", "");
    out.request_id = reader.string("requestId", "");
    out.dry_run = reader.boolean("dryRun", false);
}

} // namespace

Result<Preempt> read_preempt(std::string_view body, policies::Rung default_mode) {
    BERTH_ASSIGN(json::value document, document_of(body));
    json::Reader reader(document, kWhat);
    Preempt out;
    std::string mode = reader.string("mode", policies::to_string(default_mode));
    take_common(reader, out);
    auto grace = duration_field(reader, "gracePeriod");
    auto grant = bytes_field(reader, "grantBytes");
    BERTH_TRY(reader.finish());
    if (!grace)
        return fail(grace.error());
    if (!grant)
        return fail(grant.error());
    out.grace = *grace;
    out.grant_bytes = *grant;
    BERTH_ASSIGN(out.mode, policies::rung_from(mode));
    return out;
}

Result<Common> read_common(std::string_view body) {
    BERTH_ASSIGN(json::value document, document_of(body));
    json::Reader reader(document, kWhat);
    Common out;
    take_common(reader, out);
    out.drop = reader.boolean("drop", false);
    (void)reader.any("mode");
    (void)reader.any("gracePeriod");
    BERTH_TRY(reader.finish());
    return out;
}

Result<Drain> read_drain(std::string_view body) {
    BERTH_ASSIGN(json::value document, document_of(body));
    json::Reader reader(document, kWhat);
    Drain out;
    take_common(reader, out);
    auto timeout = duration_field(reader, "timeout");
    BERTH_TRY(reader.finish());
    if (!timeout)
        return fail(timeout.error());
    out.timeout = timeout->value_or(out.timeout);
    return out;
}

Result<Rollout> read_rollout(std::string_view body) {
    BERTH_ASSIGN(json::value document, document_of(body));
    json::Reader reader(document, kWhat);
    Rollout out;
    take_common(reader, out);
    out.in_place = reader.boolean("inPlace", false);
    BERTH_TRY(reader.finish());
    return out;
}

Result<Need> read_need(std::string_view body) {
    BERTH_ASSIGN(json::value document, document_of(body));
    json::Reader reader(document, kWhat);
    Need out;
    out.class_name = reader.string("class", "");
    out.memory = reader.string("memory");
    out.device = reader.string("device", "");
    BERTH_TRY(reader.finish());
    BERTH_ASSIGN(out.bytes, parse_bytes(out.memory));
    return out;
}

Result<Load> read_load(std::string_view body) {
    BERTH_ASSIGN(json::value document, document_of(body));
    json::Reader reader(document, kWhat);
    Load out;
    out.model = reader.string("model", "");
    out.path = reader.string("path", "");
    out.dtype = reader.string("dtype", "auto");
    out.quantization = reader.string("quantization", "none");
    out.device = reader.string("device", "");
    const uint64_t rank = reader.unsigned_integer("rank", 0);
    const uint64_t ranks = reader.unsigned_integer("ranks", 1);
    out.request_id = reader.string("requestId", "");
    out.dry_run = reader.boolean("dryRun", false);
    if (ranks == 0 || ranks > UINT32_MAX)
        reader.refuse("ranks", "expected the Model's tensorParallel");
    else if (rank >= ranks)
        reader.refuse("rank", fmt::format("expected 0 to {}, as there are {}", ranks - 1, ranks));
    if (ranks > 1 && (out.model.empty() || out.device.empty()))
        reader.refuse("ranks", "the part of one of several ranks wants a model and a device");
    if (out.model.empty() == out.path.empty())
        reader.refuse("model", "give either model or path");
    constexpr std::array<std::string_view, 4> kDtypes{"auto", "float32", "bfloat16", "float16"};
    if (std::ranges::find(kDtypes, out.dtype) == kDtypes.end())
        reader.refuse("dtype", "expected auto, float32, bfloat16 or float16");
    if (out.quantization != "none" && out.quantization != "fp8-block")
        reader.refuse("quantization", "expected none or fp8-block");
    if (out.path.find('\0') != std::string::npos)
        reader.refuse("path", "a path holds no zero byte");
    if (!out.path.empty() && !std::filesystem::path(out.path).is_absolute())
        reader.refuse("path", "expected an absolute path");
    BERTH_TRY(reader.finish());
    if (!out.path.empty())
        out.path = std::filesystem::path(out.path).lexically_normal().string();
    out.rank = static_cast<uint32_t>(rank);
    out.ranks = static_cast<uint32_t>(ranks);
    while (out.path.size() > 1 && out.path.back() == '/')
        out.path.pop_back();
    return out;
}

Result<bool> read_verify(std::string_view body) {
    BERTH_ASSIGN(json::value document, document_of(body));
    json::Reader reader(document, kWhat);
    bool deep = reader.boolean("deep", false);
    BERTH_TRY(reader.finish());
    return deep;
}

} // namespace berth::bodies
