// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/metrics_text.h"

#include "scheduler/admin/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace berth {

namespace {

// Label values may hold anything; the format wants three characters escaped.
std::string label(std::string_view text) {
    std::string escaped;
    for (char c : text) {
        if (c == '\\' || c == '"')
            escaped += '\\';
        if (c == '\n')
            escaped += "\\n";
        else
            escaped += c;
    }
    return escaped;
}

class Text {
  public:
    void head(std::string_view name, std::string_view type, std::string_view help) {
        fmt::format_to(std::back_inserter(out_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name,
                       type);
    }
    template <typename Number>
    void line(std::string_view name, std::string_view labels, Number number) {
        if (labels.empty())
            fmt::format_to(std::back_inserter(out_), "{} {}\n", name, number);
        else
            fmt::format_to(std::back_inserter(out_), "{}{{{}}} {}\n", name, labels, number);
    }
    void histogram(std::string_view name, const std::string& labels, const Histogram& histogram) {
        std::string comma = labels.empty() ? "" : ",";
        std::string bucket = fmt::format("{}_bucket", name);
        for (size_t i = 0; i < Histogram::kBounds.size(); ++i)
            line(bucket, fmt::format("{}{}le=\"{}\"", labels, comma, Histogram::kBounds[i]),
                 histogram.bucket(i));
        line(bucket, fmt::format("{}{}le=\"+Inf\"", labels, comma), histogram.count());
        line(fmt::format("{}_sum", name), labels, histogram.sum());
        line(fmt::format("{}_count", name), labels, histogram.count());
    }
    std::string take() { return std::move(out_); }

  private:
    std::string out_;
};

void device_metrics(Text& text, const NodeContext& context) {
    text.head("berth_device_bytes", "gauge", "Bytes of a device, by what they are for.");
    for (const auto& [id, device] : context.state().devices) {
        node::DeviceUsage usage = node::usage(context.state(), id);
        auto put = [&](const char* kind, uint64_t bytes) {
            text.line("berth_device_bytes",
                      fmt::format("device=\"{}\",kind=\"{}\"", label(id.value), kind), bytes);
        };
        put("total", usage.total_bytes);
        put("reserve", usage.reserve_bytes);
        put("weights", usage.weight_bytes);
        put("grant", usage.grant_bytes);
        put("overhead", usage.overhead_bytes);
        put("staging", usage.loader_bytes);
        put("free", usage.free_bytes);
        put("reclaimable", usage.reclaimable_bytes);
    }
}

void tier_metrics(Text& text, const NodeContext& context) {
    text.head("berth_tier_bytes", "gauge", "Bytes of copies below the devices, and their limits.");
    for (const node::DeviceId& tier : {node::kHostTier, node::kImageTier}) {
        const node::TierUsage usage = node::tier_usage(context.state(), tier);
        auto put = [&](const char* kind, uint64_t bytes) {
            text.line("berth_tier_bytes", fmt::format("tier=\"{}\",kind=\"{}\"", tier.value, kind),
                      bytes);
        };
        put("limit", usage.limit_bytes);
        put("used", usage.used_bytes);
        put("making", usage.making_bytes);
    }
}

void instance_metrics(Text& text, const NodeContext& context) {
    text.head("berth_instances", "gauge", "Instances by state.");
    std::map<std::string, uint64_t> by_state;
    using State = node::InstanceState;
    for (State state : {State::kPending, State::kLoading, State::kStarting, State::kRunning,
                        State::kPreempting, State::kPaused, State::kSuspended, State::kResuming,
                        State::kSucceeded, State::kFailed, State::kEvicted})
        by_state[std::string(to_string(state))] = 0;
    for (const auto& [name, instance] : context.state().instances)
        ++by_state[std::string(to_string(instance.state))];
    for (const auto& [state, count] : by_state)
        text.line("berth_instances", fmt::format("state=\"{}\"", state), count);
    text.head("berth_instance_tokens_total", "counter", "Tokens that an instance has made.");
    for (const auto& [name, instance] : context.state().instances)
        text.line("berth_instance_tokens_total", fmt::format("instance=\"{}\"", label(name.value)),
                  instance.counters.tokens_done);
}

} // namespace

std::string metrics_text(const NodeContext& context, const std::string& version) {
    Text text;
    device_metrics(text, context);
    instance_metrics(text, context);
    tier_metrics(text, context);
    const auto& sets = context.state().weights;
    text.head("berth_weight_sets", "gauge", "Resident weight sets.");
    text.line("berth_weight_sets", "", std::count_if(sets.begin(), sets.end(), [](const auto& one) {
                  return !node::is_tier(one.first.first);
              }));
    text.head("berth_weight_loads_total", "counter",
              "Weight sets that became resident, by where their bytes came from.");
    for (const auto& [source, count] : context.metrics.weight_loads)
        text.line("berth_weight_loads_total", fmt::format("source=\"{}\"", label(source)), count);
    text.head("berth_operations_total", "counter", "Operations that have ended.");
    for (const auto& [key, count] : context.metrics.operations)
        text.line("berth_operations_total",
                  fmt::format("kind=\"{}\",state=\"{}\"", key.first, key.second), count);
    text.head("berth_private_loads_total", "counter",
              "Weights that engines loaded for themselves, by why the shared ones would not do.");
    for (const auto& [reason, count] : context.metrics.private_loads)
        text.line("berth_private_loads_total", fmt::format("reason=\"{}\"", label(reason)), count);
    text.head("berth_sets_published_total", "counter", "Weight sets that engines have published.");
    text.line("berth_sets_published_total", "", context.metrics.sets_published);
    text.head("berth_canaries_total", "counter", "Canaries that engines have reported.");
    for (const auto& [outcome, count] : context.metrics.canaries)
        text.line("berth_canaries_total", fmt::format("outcome=\"{}\"", outcome), count);
    text.head("berth_attach_seconds", "histogram", "From an attach request to its reply.");
    text.histogram("berth_attach_seconds", "", context.metrics.attach_seconds);
    text.head("berth_preempt_seconds", "histogram", "From a preemption's start to its bytes free.");
    for (const auto& [mode, histogram] : context.metrics.preempt_seconds)
        text.histogram("berth_preempt_seconds", fmt::format("mode=\"{}\"", mode), histogram);
    text.head("berth_recovery_seconds", "gauge",
              "From this berthd's start until engines may come.");
    text.line("berth_recovery_seconds", "", context.metrics.recovery_seconds);
    text.head("berth_loop_lag_seconds", "histogram",
              "How long what is ready waits for berthd's decision thread, looked at 20 times a s.");
    text.histogram("berth_loop_lag_seconds", "", context.metrics.loop_lag);
    text.head("berth_loop_lag_max_seconds", "gauge", "The longest of these since the start.");
    text.line("berth_loop_lag_max_seconds", "", context.metrics.loop_lag_max);
    text.head("process_resident_memory_bytes", "gauge", "Resident memory of berthd.");
    text.line("process_resident_memory_bytes", "", views::resident_bytes());
    text.head("berth_build_info", "gauge", "1, with the version as a label.");
    text.line("berth_build_info", fmt::format("version=\"{}\"", version), 1);
    return text.take();
}

} // namespace berth
