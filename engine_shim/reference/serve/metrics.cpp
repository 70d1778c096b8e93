// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/metrics.h"

#include <fmt/format.h>

namespace berth::serve {
namespace {

void head(std::string& to, std::string_view name, std::string_view type, std::string_view help) {
    to += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

void one(std::string& to, std::string_view name, std::string_view type, std::string_view help,
         double value) {
    head(to, name, type, help);
    to += fmt::format("{} {}\n", name, value);
}

} // namespace

void TimeHistogram::add(double seconds) {
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket])
        ++bucket;
    ++counts_[bucket];
    sum_ += seconds;
}

void TimeHistogram::write(std::string& to, const std::string& name, const std::string& help) const {
    head(to, name, "histogram", help);
    uint64_t below = 0;
    for (size_t bucket = 0; bucket < kBounds.size(); ++bucket) {
        below += counts_[bucket];
        to += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[bucket], below);
    }
    below += counts_.back();
    to += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, below,
                      sum_);
}

std::string ServerMetrics::text(const engine::EngineStats& stats) const {
    std::string out;
    head(out, "berth_engine_http_requests_total", "counter", "Requests answered.");
    for (const auto& [key, count] : requests)
        out += fmt::format("berth_engine_http_requests_total{{route=\"{}\",status=\"{}\"}} {}\n",
                           key.first, key.second, count);
    auto counter = [&](std::string_view name, std::string_view help, uint64_t value) {
        one(out, name, "counter", help, static_cast<double>(value));
    };
    auto gauge = [&](std::string_view name, std::string_view help, uint64_t value) {
        one(out, name, "gauge", help, static_cast<double>(value));
    };
    gauge("berth_engine_http_requests_in_flight", "Completion requests being answered.",
          requests_now);
    counter("berth_engine_disconnects_total", "Clients that left before their answer.",
            disconnects);
    counter("berth_engine_prompt_tokens_total", "Prompt tokens of accepted requests.",
            prompt_tokens);
    counter("berth_engine_completion_tokens_total", "Tokens generated for clients.",
            completion_tokens);
    first_token.write(out, "berth_engine_time_to_first_token_seconds",
                      "From a request's begin to its first token.");
    later_tokens.write(out, "berth_engine_time_per_output_token_seconds",
                       "Between tokens after the first: each request's mean.");
    whole.write(out, "berth_engine_request_seconds", "From a request's begin to its end.");
    gauge("berth_engine_requests_running", "Sequences being decoded.", stats.requests_running);
    gauge("berth_engine_requests_waiting", "Sequences waiting for room.", stats.requests_waiting);
    counter("berth_engine_requests_done_total", "Sequences ended.", stats.requests_done);
    counter("berth_engine_prefilled_tokens_total", "Tokens prefilled, recomputation counted again.",
            stats.prompt_tokens);
    counter("berth_engine_prefix_tokens_total",
            "Prompt tokens that were not computed, as an earlier prompt's blocks held them.",
            stats.prefix_tokens);
    counter("berth_engine_generated_tokens_total", "Tokens generated.", stats.generated_tokens);
    counter("berth_engine_steps_total", "Forward passes.", stats.steps);
    counter("berth_engine_preemptions_total", "Sequences sent back to waiting for lack of blocks.",
            stats.preemptions);
    counter("berth_engine_gate_pauses_total", "Times the gate held the engine.", stats.gate_pauses);
    gauge("berth_engine_kv_blocks", "Blocks of the key-value cache.", stats.blocks_total);
    gauge("berth_engine_kv_blocks_free", "Free blocks of it.", stats.blocks_free);
    double used = stats.blocks_total == 0 ? 0
                                          : 1 - static_cast<double>(stats.blocks_free) /
                                                    static_cast<double>(stats.blocks_total);
    one(out, "berth_engine_kv_usage_ratio", "gauge", "Used share of the key-value cache.", used);
    gauge("berth_engine_weights_private",
          "1 where the weights were loaded for this process alone, 0 where they are shared.",
          stats.weights_private ? 1 : 0);
    gauge("berth_engine_ready", "1 once a step was verified and while nothing holds the engine.",
          stats.ready ? 1 : 0);
    return out;
}

std::string kept_text(const http::Keeping::Counts& counts) {
    std::string out;
    one(out, "berth_engine_connections_kept", "gauge",
        "Connections that would outlive this engine.", static_cast<double>(counts.kept));
    one(out, "berth_engine_connections_taken_over_total", "counter",
        "Connections that an engine before this one has left.",
        static_cast<double>(counts.taken_over));
    one(out, "berth_engine_connections_cut_total", "counter",
        "Connections of an engine before this one that could not be gone on with.",
        static_cast<double>(counts.cut));
    one(out, "berth_engine_requests_of_another_identity_total", "counter",
        "Of them: with a request that an engine of another model, name or context had begun.",
        static_cast<double>(counts.other_identity));
    const std::string name = "berth_engine_connections_not_kept_total";
    head(out, name, "counter", "Times that a connection was not kept, or no longer, by cause.");
    const std::pair<const char*, uint64_t> causes[] = {{"NoSlot", counts.no_slot},
                                                       {"NotParked", counts.not_parked},
                                                       {"NotOffered", counts.not_offered},
                                                       {"TooLarge", counts.too_large}};
    for (const auto& [cause, count] : causes)
        out += fmt::format("{}{{cause=\"{}\"}} {}\n", name, cause, count);
    return out;
}

} // namespace berth::serve
