// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/simulate.h"

#include "base/unique_fd.h"
#include "base/units.h"
#include "policies/yaml.h"
#include "scheduler/simulate/replay.h"
#include "scheduler/simulate/trace.h"

#include <chrono>

namespace berth::cli {

namespace {

constexpr size_t kTraceBytesMax = 256 << 20;

void show(Format format, const json::object& document) {
    print(format == Format::kJson ? pretty_json(document) : yaml_text(document));
}

json::object object_of(const simulate::Percentiles& of) {
    return {{"p50", of.p50}, {"p90", of.p90}, {"p99", of.p99}, {"max", of.most}};
}

json::object object_of(const simulate::ReplayReport& report) {
    json::object hours, rungs, waits;
    for (const auto& [name, value] : report.batch_hours_by_instance)
        hours[name] = value;
    for (const auto& [rung, count] : report.preemptions)
        rungs[rung] = count;
    for (const auto& [name, wait] : report.waits)
        waits[name] = json::object{{"totalSeconds", wait.total_seconds},
                                   {"longestSeconds", wait.longest_seconds},
                                   {"lastReason", wait.last_reason}};
    return {{"requests", report.requests},
            {"notServed", report.not_served},
            {"seconds", report.seconds},
            {"ttftMs", object_of(report.ttft_ms)},
            {"ttftAloneMs", object_of(report.ttft_alone_ms)},
            {"ttftAddedMs", object_of(report.ttft_added_ms)},
            {"batchHours", report.batch_hours},
            {"batchHoursByInstance", std::move(hours)},
            {"gateClosings", report.gate_closings},
            {"preemptions", std::move(rungs)},
            {"waits", std::move(waits)}};
}

Result<simulate::ServiceModel> model_of(const SimulateOptions& options) {
    simulate::ServiceModel model;
    model.prefill_tokens_per_second = options.prefill;
    model.decode_tokens_per_second = options.decode;
    model.gpus = options.gpus;
    BERTH_ASSIGN(model.weight_bytes, parse_bytes(options.weights));
    BERTH_ASSIGN(model.gpu_bytes, parse_bytes(options.device_memory));
    BERTH_ASSIGN(model.start_time, parse_duration(options.start_time));
    return model;
}

Status replay_arrivals(Format format, const SimulateOptions& options) {
    BERTH_ASSIGN(std::string text, read_file(options.trace, kTraceBytesMax));
    BERTH_ASSIGN(std::vector<simulate::Arrival> arrivals,
                 simulate::read_arrivals(text, options.trace));
    BERTH_ASSIGN(policies::Documents documents, policies::load_paths({options.policy}));
    BERTH_ASSIGN(simulate::ServiceModel model, model_of(options));
    BERTH_ASSIGN(simulate::ReplayReport report, simulate::replay(documents, arrivals, model));
    if (format == Format::kTable)
        print(simulate::to_text(report));
    else
        show(format, object_of(report));
    return {};
}

Status broken(const simulate::Plan& plan, const simulate::Outcome& outcome) {
    print(
        simulate::report(simulate::shrink(plan, outcome, simulate::simulate), simulate::simulate));
    return fail(ErrorCode::kInternal,
                "seed " + std::to_string(plan.seed) + " breaks rule '" + outcome.found->rule +
                    "': " + outcome.found->text,
                "RuleBroken");
}

Status run_seeds(Format format, const SimulateOptions& options) {
    uint64_t events = 0;
    const auto began = std::chrono::steady_clock::now();
    for (uint64_t seed = options.first_seed; seed < options.first_seed + options.seeds; ++seed) {
        simulate::Plan plan;
        plan.seed = seed;
        plan.events = options.events;
        const simulate::Outcome outcome = simulate::simulate(plan);
        events += outcome.events;
        if (outcome.found)
            return broken(plan, outcome);
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (format == Format::kTable)
        print(std::to_string(options.seeds) + " seeds, " + std::to_string(events) +
              " events: all that must hold held (" +
              std::to_string(static_cast<uint64_t>(static_cast<double>(events) / seconds)) +
              " events a second)\n");
    else
        show(format, {{"seeds", options.seeds}, {"events", events}, {"seconds", seconds}});
    return {};
}

Status run_again(const SimulateOptions& options) {
    BERTH_ASSIGN(std::string text, read_file(options.replay, kTraceBytesMax));
    BERTH_ASSIGN(simulate::Plan plan, simulate::plan_from(text));
    plan.keeps_log = true;
    const simulate::Outcome outcome = simulate::simulate(plan);
    for (const std::string& line : outcome.log)
        print(line + "\n");
    if (outcome.found)
        return fail(ErrorCode::kInternal, outcome.found->text, "RuleBroken");
    print("nothing that must hold was broken\n");
    return {};
}

} // namespace

Status simulate_node(Format format, const SimulateOptions& options) {
    if (!options.replay.empty())
        return run_again(options);
    if (options.seeds > 0)
        return run_seeds(format, options);
    if (options.trace.empty() || options.policy.empty())
        return fail(ErrorCode::kInvalidArgument,
                    "nothing to simulate: --trace FILE and --policy FILE, or --seeds N, or "
                    "--replay FILE",
                    "NothingToDo");
    return replay_arrivals(format, options);
}

} // namespace berth::cli
