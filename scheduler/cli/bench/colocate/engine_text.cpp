// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/engine_text.h"

#include "base/json.h"
#include "base/unique_fd.h"
#include "scheduler/cli/bench/colocate/dice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace berth::cli::bench {

namespace {

constexpr size_t kConfigBytesMax = size_t{16} << 20;
// The first ids are often special ones.
constexpr uint32_t kFirstToken = 3;

std::optional<uint64_t> counter_in(std::string_view metrics, std::string_view name) {
    const std::string start = fmt::format("\n{} ", name);
    const size_t at = metrics.find(start);
    if (at == std::string_view::npos)
        return std::nullopt;
    // Counters are printed as reals, large ones with an exponent.
    double value = 0;
    const char* from = metrics.data() + at + start.size();
    const auto [end, error] = std::from_chars(from, metrics.data() + metrics.size(), value);
    return error == std::errc() ? std::optional(static_cast<uint64_t>(value)) : std::nullopt;
}

} // namespace

std::string completion_request(const Asked& asked, size_t number, const Arrival& shape) {
    Dice dice(asked.seed * 1'000'003 + number);
    const uint32_t span = std::max(asked.vocabulary, kFirstToken + 1) - kFirstToken;
    std::string body = fmt::format(
        R"({{"model":"{}","max_tokens":{},"temperature":0,"ignore_eos":true,"stream":true,)"
        R"("stream_options":{{"include_usage":true}},"prompt":[)",
        asked.model, shape.tokens);
    for (uint32_t n = 0; n < shape.prompt_tokens; ++n)
        body += fmt::format("{}{}", n == 0 ? "" : ",", kFirstToken + dice.below(span));
    body += "]}";
    return fmt::format("POST /v1/completions HTTP/1.1\r\nHost: engine\r\n"
                       "Content-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                       body.size(), asked.keeps_connection ? "" : "Connection: close\r\n", body);
}

std::string metrics_request() {
    return "GET /metrics HTTP/1.1\r\nHost: engine\r\n\r\n";
}

Result<uint32_t> vocabulary_of(const std::string& model_folder) {
    const std::string file = model_folder + "/config.json";
    BERTH_ASSIGN(const std::string text, read_file(file, kConfigBytesMax));
    BERTH_ASSIGN(const json::value config, json::parse(text, file));
    json::Reader reader(config, file);
    reader.allow_unknown();
    const uint64_t size = reader.unsigned_integer("vocab_size");
    BERTH_TRY(reader.finish());
    if (size <= kFirstToken || size > uint64_t{1} << 30)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: a vocabulary of {} tokens is none", file, size));
    return static_cast<uint32_t>(size);
}

std::optional<BatchCounters> batch_counters(std::string_view metrics) {
    const auto tokens = counter_in(metrics, "berth_engine_generated_tokens_total");
    const auto prefilled = counter_in(metrics, "berth_engine_prefilled_tokens_total");
    const auto pauses = counter_in(metrics, "berth_engine_gate_pauses_total");
    const auto preempted = counter_in(metrics, "berth_engine_preemptions_total");
    const auto done = counter_in(metrics, "berth_engine_requests_done_total");
    if (!tokens || !prefilled || !pauses || !preempted || !done)
        return std::nullopt;
    return BatchCounters{*tokens, *prefilled, *pauses, *preempted, *done};
}

} // namespace berth::cli::bench
