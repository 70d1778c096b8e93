// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/run.h"

#include "scheduler/cli/bench/bench.h"
#include "scheduler/cli/bench/colocate/stop_signals.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/output.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::cli::bench {

namespace {

using std::chrono::steady_clock;

// Beside its window: rules applied, the last answers, files.
constexpr double kPhaseMoreSeconds = 4;
constexpr double kPatienceLeast = 5;
constexpr double kNodeSeconds = 15; // a node of its own

double seconds_since(steady_clock::time_point when) {
    return std::chrono::duration<double>(steady_clock::now() - when).count();
}

void say(const std::string& words) {
    print_error("berth: " + words + "\n");
}

} // namespace

ColocateRun::ColocateRun(ColocateOptions options, Report report)
    : options_(std::move(options)), report_(std::move(report)) {}

ColocateRun::~ColocateRun() = default;

Status ColocateRun::prepare() {
    BERTH_ASSIGN(phases_, phase_plans(options_));
    BERTH_ASSIGN(unscaled_, unscaled_arrivals(options_));
    BERTH_ASSIGN(asked_.vocabulary, vocabulary_of(options_.model));
    asked_.seed = options_.seed;
    asked_.keeps_connection = !options_.fresh_connections;
    say("starting the node: the weights once, an online and a batch engine");
    BERTH_TRY(have_node_for(PhasePlan()));
    auto nvml = Nvml::open();
    const Status metered =
        nvml ? nvml->joules(node_->device()).map([](double) {}) : Status(fail(nvml.error()));
    if (metered)
        energy_ = std::move(*nvml);
    else
        no_energy_ = metered.error().message;
    return find_load();
}

// One whose engines are those that it began with; another one where they are not.
Status ColocateRun::have_node_for(const PhasePlan& plan) {
    const std::string compute = plan.own_node ? plan.compute : "Gate";
    if (node_ && node_compute_ == compute && node_->check_engines())
        return {};
    close_node();
    PhasePlan first;
    first.compute = compute;
    if (plan.own_node)
        first.share = plan.share;
    ++nodes_;
    BERTH_ASSIGN(node_, ColocateNode::start(options_, first));
    node_compute_ = compute;
    return warm_up(node_->online(), asked_, node_->context_tokens_max());
}

void ColocateRun::close_node() {
    if (!node_)
        return;
    if (const auto found = check_batch(node_->batch_output())) {
        batch_answers_.lines += found->lines;
        batch_answers_.twice += found->twice;
        batch_answers_.failed += found->failed;
        batch_answers_.different += found->different;
    } else {
        batch_unread_ = found.error().message;
    }
    if (!report_.folder().empty())
        node_->copy_logs(report_.folder() +
                         (nodes_ > 1 ? fmt::format("/logs-{}", nodes_) : "/logs"));
    node_.reset();
}

Status ColocateRun::find_load() {
    PhasePlan alone;
    alone.name = kOnlineAlone;
    alone.batch = false;
    BERTH_TRY(node_->enter(alone, {}));
    say("measuring the online engine's pace");
    BERTH_ASSIGN(pace_, measure_pace(node_->online(), asked_, node_->context_tokens_max()));
    const Scale scale{options_.phase_seconds, options_.token_scale, options_.prompt_scale};
    load_ =
        fit_busy(unscaled_, pace_, options_.busy_percent / 100, scale, node_->context_tokens_max());
    BERTH_TRY(rehearse());
    if (options_.token_scale > 0)
        say(fmt::format("a phase lasts {:.1f} s for a busy share of {:.0f} %", load_.window_s,
                        100 * load_.predicted_busy));
    return report_.add_line(
        set_up_line(),
        fmt::format(
            "{} requests in {:.1f} s, lengths times {:.3g} ({} clipped to the context of {} "
            "tokens), for a busy share of {:.0f} %.",
            load_.arrivals.size(), load_.window_s, load_.token_scale, load_.clipped,
            node_->context_tokens_max(), 100 * load_.predicted_busy));
}

// Nobody's latency: the engine meets the shapes of this load for the first time, all of them, as
// fast as it can, so that what is made of online alone (targets, ratios) is of a warm engine.
Status ColocateRun::rehearse() {
    LoopPlan rehearsal = online_loop(load_.arrivals.size());
    const double part = std::clamp(load_.predicted_busy, 0.1, 1.0);
    for (double& due : rehearsal.due_s)
        due *= part;
    rehearsal.window_s = rehearsal.due_s.empty() ? 0 : rehearsal.due_s.back();
    if (const double left = options_.time_limit - seconds_since(began_);
        options_.time_limit > 0 && left < rehearsal.window_s + load_.window_s + kPhaseMoreSeconds)
        return {}; // the phases say that they do not fit
    say(fmt::format("the load once, unmeasured, in {:.0f} s", rehearsal.window_s));
    return run_loop(std::move(rehearsal)).map([](const LoopOutcome&) {});
}

json::object ColocateRun::set_up_line() const {
    uint64_t prompt = 0, tokens = 0;
    for (const Arrival& one : load_.arrivals) {
        prompt += one.prompt_tokens;
        tokens += one.tokens;
    }
    const auto count = static_cast<double>(load_.arrivals.size());
    json::object line{
        {"bench", "colocate"},
        {"setUp", json::object{{"model", options_.model},
                               {"device", node_->device()},
                               {"memory", options_.memory},
                               {"engineArgs", options_.engine_args},
                               {"batchArgs", options_.batch_args},
                               {"batch", options_.batch},
                               {"trace", options_.trace},
                               {"traceRow", options_.trace_row},
                               {"arrivals", options_.arrivals},
                               {"seed", options_.seed},
                               {"requests", load_.arrivals.size()},
                               {"windowSeconds", load_.window_s},
                               {"tokenScale", load_.token_scale},
                               {"promptTokensMean", static_cast<double>(prompt) / count},
                               {"tokensMean", static_cast<double>(tokens) / count},
                               {"clippedToContext", load_.clipped},
                               {"contextTokensMax", node_->context_tokens_max()},
                               {"busyWanted", options_.busy_percent / 100},
                               {"busyPredicted", load_.predicted_busy},
                               {"connections", options_.fresh_connections ? "fresh" : "kept"},
                               {"resamples", options_.resamples},
                               {"paceMs", json::object{{"prompt", pace_.prompt_s * 1e3},
                                                       {"promptToken", pace_.prompt_token_s * 1e3},
                                                       {"step", pace_.step_s * 1e3},
                                                       {"stepPerRow", pace_.row_s * 1e3}}}}}};
    if (!no_energy_.empty())
        line["setUp"].get_object()["noEnergy"] = no_energy_;
    return line;
}

Baseline ColocateRun::baseline() const {
    Baseline found;
    for (const PhaseResult& result : results_) {
        if (!result.was_run() || result.outcome.stopped)
            continue;
        if (found.online == nullptr && result.plan.name == kOnlineAlone)
            found.online = &result;
        if (result.plan.name == kBatchAlone)
            found.batch = &result;
    }
    if (found.online != nullptr) {
        const Latencies alone = latencies_of(*found.online);
        found.targets.ttft_ms = options_.slo_factor * percentile(flat(alone.ttft), 99);
        found.targets.tpot_ms = options_.slo_factor * percentile(flat(alone.tpot), 99);
    }
    return found;
}

std::string ColocateRun::reason_to_skip(const PhasePlan& plan) const {
    if (StopSignals::asked())
        return "a signal ended the run";
    if (const Status known = check_rules(plan); !known)
        return known.error().message;
    if (plan.compute == "MPS" && node_ && node_->device().starts_with("host"))
        return "MPS is for NVIDIA GPUs, and this is " + node_->device();
    if (plan.with_slo && baseline().targets.ttft_ms <= 0)
        return "there is no online alone to make its targets from";
    const double takes = (plan.online ? load_.window_s : options_.batch_seconds) +
                         kPhaseMoreSeconds + (plan.own_node ? kNodeSeconds : 0);
    if (options_.time_limit > 0 && seconds_since(began_) + takes > options_.time_limit)
        return fmt::format("it would take {:.0f} s, and the run has lasted {:.0f} of its {:.0f} s",
                           takes, seconds_since(began_), options_.time_limit);
    return "";
}

LoopPlan ColocateRun::online_loop(size_t requests) const {
    LoopPlan loop;
    loop.online = node_->online();
    loop.keeps_connections = !options_.fresh_connections;
    for (size_t n = 0; n < requests; ++n) {
        loop.requests.push_back(completion_request(asked_, n, load_.arrivals[n]));
        loop.due_s.push_back(load_.arrivals[n].due_s);
    }
    return loop;
}

Status ColocateRun::measure(PhaseResult& result) {
    const PhasePlan& plan = result.plan;
    BERTH_TRY(have_node_for(plan));
    if (plan.compute == "MPS")
        BERTH_TRY(node_->check_mps());
    result.node = nodes_;
    BERTH_TRY(node_->enter(plan, baseline().targets));
    BERTH_ASSIGN(const ColocateNode::Preempted preempted_before, node_->preempted());
    LoopPlan loop = online_loop(plan.online ? load_.arrivals.size() : 0);
    loop.window_s = result.window_s = plan.online ? load_.window_s : options_.batch_seconds;
    if (plan.batch)
        loop.batch = node_->batch();
    if (options_.time_limit > 0)
        loop.patience_s = std::clamp(options_.time_limit - seconds_since(began_) - loop.window_s,
                                     kPatienceLeast, loop.patience_s);
    const auto before = energy_ ? energy_->joules(node_->device()) : Result<double>(0);
    const auto begun = steady_clock::now();
    BERTH_ASSIGN(result.outcome, run_loop(std::move(loop)));
    if (const auto after = energy_ ? energy_->joules(node_->device()) : Result<double>(0);
        energy_ && before && after)
        result.joules = *after - *before;
    result.joules_s = seconds_since(begun);
    BERTH_ASSIGN(const ColocateNode::Preempted now, node_->preempted());
    result.preempted = {now.count - preempted_before.count,
                        now.bytes_freed - preempted_before.bytes_freed,
                        now.bytes_saved - preempted_before.bytes_saved,
                        now.bytes_moved - preempted_before.bytes_moved};
    if (result.outcome.stopped)
        return fail(ErrorCode::kUnavailable, "a signal ended the phase before its end");
    const auto answered = static_cast<size_t>(
        std::ranges::count_if(result.outcome.answers, [](const Answer& a) { return a.done; }));
    if (answered < result.outcome.answers.size())
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("{} of {} requests were not answered",
                                result.outcome.answers.size() - answered,
                                result.outcome.answers.size()));
    const auto rate = batch_rate(result);
    if (plan.batch && (!rate || result.outcome.batch.size() < 2))
        return fail(ErrorCode::kUnavailable, "the batch engine's counters could not be read");
    return node_->check_engines();
}

PhaseResult ColocateRun::run_phase(const PhasePlan& plan) {
    PhaseResult result;
    result.plan = plan;
    result.skipped = reason_to_skip(plan);
    if (!result.skipped.empty())
        return result;
    say("phase " + plan.name);
    if (const Status measured = measure(result); !measured) {
        result.error = measured.error().message;
        ++failed_;
        say(fmt::format("phase {}: {}", plan.name, result.error));
    }
    return result;
}

// Online alone on that node once more, where the first phase is not it: what lies between the two
// ratios is drift, not sharing.
const PhaseResult* ColocateRun::alone_again_on(size_t node) const {
    for (const PhaseResult& result : results_)
        if ((result.plan.name == kOnlineAgain || result.plan.name == kMpsAlone) &&
            result.node == node && result.was_run() && result.error.empty())
            return &result;
    return nullptr;
}

Status ColocateRun::compare_again() {
    for (const PhaseResult& result : results_) {
        if (!result.plan.online || !result.was_run())
            continue;
        Baseline again;
        again.online = alone_again_on(result.node);
        if (again.online == nullptr || again.online == &result)
            continue;
        const json::object shown = phase_json(result, again, {options_.resamples, options_.seed});
        json::object line{{"bench", "colocate"},
                          {"besideAloneAgain", result.plan.name},
                          {"alone", again.online->plan.name},
                          {"node", result.node},
                          {"mismatches", shown.at("online").at("mismatches")}};
        for (const char* kind : {"ttftMs", "tpotMs"})
            line[kind] = shown.at(kind).at("besideAlone");
        const auto p99 = [&line](const char* kind) {
            return real_at(line[kind].at("p99").get_object(), "ratio");
        };
        BERTH_TRY(report_.add_line(
            line,
            fmt::format("{} beside {} on the same node: p99 of TTFT {:.3f} x, of TPOT "
                        "{:.3f} x.",
                        result.plan.name, again.online->plan.name, p99("ttftMs"), p99("tpotMs"))));
    }
    return {};
}

Status ColocateRun::finish() {
    BERTH_TRY(compare_again());
    close_node();
    const BatchAnswers& found = batch_answers_;
    json::object line{{"bench", "colocate"},
                      {"batchAnswers", json::object{{"lines", found.lines},
                                                    {"twice", found.twice},
                                                    {"failed", found.failed},
                                                    {"different", found.different}}}};
    if (!batch_unread_.empty())
        line["batchAnswers"].get_object()["error"] = batch_unread_;
    BERTH_TRY(report_.add_line(
        line, fmt::format("Batch answered {} lines, {} twice, {} with a failure, {} unlike the "
                          "first answer to the same. {}",
                          found.lines, found.twice, found.failed, found.different, batch_unread_)));
    report_.print_table();
    if (found.twice > 0 || found.failed > 0)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("of batch's {} answers {} are of lines that had one and {} are "
                                "failures",
                                found.lines, found.twice, found.failed),
                    "BatchAnswersWrong");
    if (failed_ > 0)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("{} of {} phases did not go as they should: see above", failed_,
                                phases_.size()),
                    "PhasesFailed");
    return {};
}

Status ColocateRun::run() {
    BERTH_TRY(prepare());
    const StopSignals signals;
    results_.reserve(phases_.size());
    for (const PhasePlan& plan : phases_) {
        results_.push_back(run_phase(plan));
        const Baseline beside = baseline();
        BERTH_TRY(report_.add_phase(
            results_, phase_json(results_.back(), beside, {options_.resamples, options_.seed})));
    }
    return finish();
}

Status colocate(const AdminClient&, const Options& options) {
    BERTH_ASSIGN(Report report, Report::open(options.colocate.out, options.json));
    ColocateRun run(options.colocate, std::move(report));
    return run.run();
}

} // namespace berth::cli::bench
