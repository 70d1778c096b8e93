// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "scheduler/cli/bench/bench.h"
#include "scheduler/cli/bench/cycles/answers.h"
#include "scheduler/cli/bench/cycles/node.h"
#include "scheduler/cli/bench/cycles/online_load.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>

// Preemption after preemption under load, and then: are all bytes back, and is every answer what it
// is undisturbed?
namespace berth::cli::bench {

namespace {

constexpr size_t kBatchLines = 20'000; // more than any run answers
constexpr std::chrono::seconds kWholeMax{180}, kWholeMaxLimited{40};
constexpr std::chrono::milliseconds kLookEvery{200};
constexpr size_t kShrinksTold = 5; // from so many on some must have met blocks in use

struct OfKind {
    std::vector<double> preempt, resume;
};
struct Suffered {
    FaultKind kind;
    double ms = 0;
};
struct Outcome {
    std::map<CycleKind, OfKind> kinds;
    std::vector<Suffered> faults;
    size_t done = 0;
    uint64_t bytes_not_back = 0, grants_not_back = 0, bytes_freed = 0;
    uint64_t bytes_saved = 0, bytes_moved = 0;
    // Shrinks, and those of them that found blocks in use above their limit.
    size_t shrinks = 0, shrinks_saved = 0, shrinks_moved = 0;
    int64_t driver_drift = 0; // what is used on the device at the end more than at the beginning
    double seconds = 0;
    LinesCheck lines;
    OnlineLoad::Counts online;
};

Status run_cycles(const CyclesOptions& options, Clock::time_point start, CyclesNode& node,
                  OnlineLoad& online, Outcome& outcome) {
    const std::vector<Cycle> cycles = plan_cycles(options.cycles, options.seed, options.work_ms);
    BERTH_ASSIGN(const auto before, node.device_bytes());
    const auto began = Clock::now();
    for (size_t n = 0; n < cycles.size(); ++n) {
        if (options.time_limit > 0 && milliseconds_since(start) > 1e3 * options.time_limit)
            break;
        const FaultKind* fault = options.faults ? fault_before(n, cycles.size()) : nullptr;
        if (fault != nullptr) {
            if (*fault == FaultKind::kOnlineKilled)
                online.away();
            auto suffered = node.suffer(*fault);
            if (!suffered)
                return fail_in(
                    fmt::format("cycle {} of {}, {}", n, cycles.size(), to_string(*fault)),
                    suffered.error());
            if (*fault == FaultKind::kOnlineKilled) {
                BERTH_ASSIGN(std::string endpoint, node.online_endpoint());
                online.back(std::move(endpoint));
            }
            outcome.faults.push_back({*fault, *suffered});
        }
        pause_between_looks(cycles[n].before);
        auto times = node.cycle(cycles[n]);
        if (!times)
            return fail_in(
                fmt::format("cycle {} of {}, {}", n, cycles.size(), to_string(cycles[n].kind)),
                times.error());
        OfKind& of = outcome.kinds[cycles[n].kind];
        of.preempt.push_back(times->preempt_ms);
        of.resume.push_back(times->resume_ms);
        outcome.bytes_freed += times->bytes_freed;
        outcome.bytes_saved += times->bytes_saved;
        outcome.bytes_moved += times->bytes_moved;
        if (cycles[n].kind == CycleKind::kShrink) {
            ++outcome.shrinks;
            outcome.shrinks_saved += times->bytes_saved > 0 ? 1 : 0;
            outcome.shrinks_moved += times->bytes_moved > 0 ? 1 : 0;
        }
        outcome.bytes_not_back += times->bytes_back ? 0 : 1;
        outcome.grants_not_back += times->grant_back ? 0 : 1;
        ++outcome.done;
        if ((n + 1) % 100 == 0)
            std::cerr << fmt::format("{} of {} cycles, {:.0f} s\n", n + 1, cycles.size(),
                                     milliseconds_since(began) / 1e3);
    }
    outcome.seconds = milliseconds_since(began) / 1e3;
    BERTH_ASSIGN(const auto after, node.device_bytes());
    outcome.driver_drift = static_cast<int64_t>(after.used) - static_cast<int64_t>(before.used);
    return {};
}

// Lines are taken in their order: what lies below the last answer is answered soon, or is lost.
Status check_batch_lines(const CyclesNode& node, const std::vector<std::string>& expected,
                         std::chrono::seconds patience, Outcome& outcome) {
    BERTH_ASSIGN(outcome.lines, check_lines(node.batch_output(), expected, 0));
    const uint64_t whole = outcome.lines.highest + 1;
    for (const auto began = Clock::now();; pause_between_looks(kLookEvery)) {
        BERTH_ASSIGN(outcome.lines, check_lines(node.batch_output(), expected, whole));
        if (outcome.lines.lost == 0 || Clock::now() - began > patience)
            return {};
    }
}

std::vector<Figure> figures_of(const Outcome& outcome) {
    std::vector<Figure> figures;
    for (const auto& [kind, of] : outcome.kinds)
        for (const bool resume : {false, true}) {
            Figure figure;
            figure.bench = "cycles";
            figure.name = fmt::format("{}, {}", resume ? "resume" : "preempt", to_string(kind));
            figure.samples = resume ? of.resume : of.preempt;
            figure.floor_is = "see `berth bench preempt`";
            figure.covers = resume ? "from the request until the instance runs, under load"
                                   : "from the request until its end was known here, under load";
            figures.push_back(std::move(figure));
        }
    return figures;
}

json::object summary_of(const CyclesOptions& options, const CyclesNode& node,
                        const Outcome& outcome) {
    json::array faults;
    for (const Suffered& one : outcome.faults)
        faults.push_back(json::object{{"fault", to_string(one.kind)}, {"backAfterMs", one.ms}});
    return {{"bench", "cycles"},
            {"figure", "outcome"},
            {"device", node.device()},
            {"seed", options.seed},
            {"computed",
             options.fast ? "as the fast path does, one sequence at a time" : "batch-invariant"},
            {"cycles", outcome.done},
            {"of", options.cycles},
            {"seconds", outcome.seconds},
            {"bytesFreed", outcome.bytes_freed},
            {"bytesSaved", outcome.bytes_saved},
            {"bytesMoved", outcome.bytes_moved},
            {"shrinks", outcome.shrinks},
            {"shrinksThatSaved", outcome.shrinks_saved},
            {"shrinksThatMoved", outcome.shrinks_moved},
            {"bytesNotBack", outcome.bytes_not_back},
            {"grantsNotBack", outcome.grants_not_back},
            {"driverDriftBytes", outcome.driver_drift},
            {"batchLines", outcome.lines.answered},
            {"batchLinesTwice", outcome.lines.twice},
            {"batchLinesFailed", outcome.lines.failed},
            {"batchLinesDifferent", outcome.lines.different},
            {"batchLinesLost", outcome.lines.lost},
            {"onlineAnswers", outcome.online.answered},
            {"onlineAtOnceMax", outcome.online.at_once_max},
            {"onlineDifferent", outcome.online.different},
            {"onlineFailed", outcome.online.failed},
            {"onlineFailedWithItsEngine", outcome.online.failed_away},
            {"faults", std::move(faults)}};
}

void print_summary(const json::object& summary, bool as_json) {
    if (as_json) {
        std::cout << json::serialize(summary) << std::endl;
        return;
    }
    std::cout << "\n";
    for (const auto& [name, value] : summary)
        std::cout << fmt::format("{:<26}{}\n", std::string_view(name), json::serialize(value));
    std::cout << std::flush;
}

// A Shrink that finds nothing in its way shows nothing. One sequence at a time is never in its way.
std::string untried(const CyclesOptions& options, const Outcome& outcome) {
    if (options.fast || outcome.shrinks < kShrinksTold ||
        (outcome.shrinks_saved > 0 && outcome.shrinks_moved > 0))
        return "";
    return fmt::format("of {} Shrinks {} saved and {} moved a block in use, so the rest shows "
                       "little: give --memory less than {}, or more sequences by "
                       "--engine-args='--max-batch N'",
                       outcome.shrinks, outcome.shrinks_saved, outcome.shrinks_moved,
                       options.memory);
}

std::string broken(const Outcome& outcome) {
    std::string words;
    const auto note = [&words](uint64_t count, const char* what) {
        if (count > 0)
            words += fmt::format("{}{} {}", words.empty() ? "" : ", ", count, what);
    };
    note(outcome.bytes_not_back, "preemptions without their bytes by the driver's figure");
    note(outcome.grants_not_back, "resumes without their grant");
    note(outcome.lines.twice, "batch lines answered twice");
    note(outcome.lines.failed, "batch lines failed");
    note(outcome.lines.different, "batch lines answered otherwise than undisturbed");
    note(outcome.lines.lost, "batch lines lost");
    note(outcome.online.different, "online answers other than undisturbed");
    note(outcome.online.failed, "online requests failed");
    const std::string& first =
        outcome.lines.first_wrong.empty() ? outcome.online.first_wrong : outcome.lines.first_wrong;
    return words.empty() || first.empty() ? words : words + "; " + first;
}

} // namespace

Status cycles(const AdminClient&, const Options& given) {
    const CyclesOptions& options = given.cycles;
    const auto start = Clock::now();
    const std::vector<std::string> prompts = make_prompts(options);
    BERTH_ASSIGN(const auto node, CyclesNode::start(options, prompts, kBatchLines));
    BERTH_TRY(node->pause_batch());
    BERTH_ASSIGN(std::string endpoint, node->online_endpoint());
    BERTH_ASSIGN(const std::vector<std::string> expected,
                 complete_all(endpoint, prompts, options.tokens));
    BERTH_TRY(node->resume_batch());

    Outcome outcome;
    OnlineLoad online(endpoint, prompts, expected, options.tokens, options.seed, options.clients);
    const Status ran = run_cycles(options, start, *node, online, outcome);
    outcome.online = online.stop();
    const Status checked = check_batch_lines(
        *node, expected, options.time_limit > 0 ? kWholeMaxLimited : kWholeMax, outcome);
    if (!options.out.empty()) {
        node->copy_results(options.out);
        std::error_code ignored;
        std::filesystem::copy_file(node->batch_output(), options.out + "/out.jsonl",
                                   std::filesystem::copy_options::overwrite_existing, ignored);
    }
    print_figures(figures_of(outcome), given.json);
    print_summary(summary_of(options, *node, outcome), given.json);
    BERTH_TRY(ran);
    BERTH_TRY(checked);
    if (const std::string words = broken(outcome); !words.empty())
        return fail(ErrorCode::kMismatch, words, "CyclesBroken");
    if (const std::string words = untried(options, outcome); !words.empty())
        return fail(ErrorCode::kFailedPrecondition, words, "ShrinksUntried");
    return {};
}

} // namespace berth::cli::bench
