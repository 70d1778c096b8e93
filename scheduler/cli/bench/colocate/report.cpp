// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/report.h"

#include "base/hash.h"
#include "base/units.h"
#include "scheduler/cli/bench/colocate/plots.h"
#include "scheduler/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace berth::cli::bench {

namespace {

// Beside a timeline for each phase, and logs-2 and so on of further nodes.
constexpr std::array<std::string_view, 5> kOwnFiles = {"report.jsonl", "samples.jsonl", "batch.csv",
                                                       "latencies.svg", "logs"};

Status append(const std::string& file, const std::string& text) {
    std::ofstream out(file, std::ios::binary | std::ios::app);
    out << text << std::flush;
    return out ? Status() : fail_errno("writing " + file);
}

const json::object* object_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(boost::json::string_view(field.data(), field.size()));
    return found != nullptr ? found->if_object() : nullptr;
}

// "55.6 / 103 / 179".
std::string percentiles_text(const json::object& line, std::string_view field) {
    const json::object* shown = object_at(line, field);
    if (shown == nullptr)
        return "";
    return fmt::format("{:.3g} / {:.3g} / {:.3g}", real_at(*shown, "p50"), real_at(*shown, "p90"),
                       real_at(*shown, "p99"));
}

// "1.02 (0.99-1.05)".
std::string ratio_text(const json::object& line, std::string_view field) {
    const json::object* shown = object_at(line, field);
    const json::object* beside = shown != nullptr ? object_at(*shown, "besideAlone") : nullptr;
    const json::object* p99 = beside != nullptr ? object_at(*beside, "p99") : nullptr;
    if (p99 == nullptr)
        return "";
    return fmt::format("{:.3f} ({:.3f}-{:.3f})", real_at(*p99, "ratio"), real_at(*p99, "low"),
                       real_at(*p99, "high"));
}

// "99.3 % (97.6-99.8)".
std::string part_text(const json::object* from, const std::string& field) {
    const auto* found = from == nullptr ? nullptr : from->if_contains(field);
    if (found == nullptr || found->is_null())
        return "";
    const std::string text = fmt::format("{:.1f} %", 100 * real_at(*from, field));
    const json::object* interval = object_at(*from, field + "Interval");
    return interval == nullptr
               ? text
               : fmt::format("{} ({:.1f}-{:.1f})", text, 100 * real_at(*interval, "low"),
                             100 * real_at(*interval, "high"));
}

// What became of a phase that did not go as it should.
std::string trouble_of(const json::object& line) {
    if (line.contains("skipped"))
        return "left out: " + text_at(line, "skipped");
    std::string text = line.contains("error") ? text_at(line, "error") : "";
    const json::object* online = object_at(line, "online");
    if (online != nullptr && number_at(*online, "answered") < number_at(*online, "requests"))
        text += fmt::format("{}{} of {} requests were not answered: {}", text.empty() ? "" : "; ",
                            number_at(*online, "requests") - number_at(*online, "answered"),
                            number_at(*online, "requests"), text_at(*online, "firstError"));
    if (online != nullptr && number_at(*online, "mismatches") > 0)
        text += fmt::format("{}{} answers differ from those alone", text.empty() ? "" : "; ",
                            number_at(*online, "mismatches"));
    if (const auto* same = line.if_contains("aloneOnSameNode");
        same != nullptr && same->is_bool() && !same->get_bool())
        text += fmt::format("{}its engines were started anew, so its ratios are to other engines "
                            "alone",
                            text.empty() ? "" : "; ");
    if (const json::object* preempted = object_at(line, "preempted");
        preempted != nullptr && number_at(*preempted, "count") > 0)
        text += fmt::format("{}{} preemptions by the node, {} freed, {} saved, {} moved",
                            text.empty() ? "" : "; ", number_at(*preempted, "count"),
                            format_bytes(number_at(*preempted, "bytesFreed")),
                            format_bytes(number_at(*preempted, "bytesSaved")),
                            format_bytes(number_at(*preempted, "bytesMoved")));
    return text;
}

// What an earlier run has left there is kept in a folder of its own: raw samples cannot be made
// again.
Status keep_earlier(const std::string& folder) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (!fs::exists(folder + "/report.jsonl", error))
        return {};
    size_t number = 1;
    while (fs::exists(fmt::format("{}/earlier-{}", folder, number), error))
        ++number;
    const std::string kept = fmt::format("{}/earlier-{}", folder, number);
    std::vector<fs::path> files; // the bench's own: a folder may hold others
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        const std::string name = entry.path().filename().string();
        if (std::ranges::find(kOwnFiles, name) != kOwnFiles.end() ||
            name.starts_with("timeline-") || name.starts_with("logs-"))
            files.push_back(entry.path());
    }
    fs::create_directory(kept, error);
    for (const fs::path& file : files)
        if (!error)
            fs::rename(file, fs::path(kept) / file.filename(), error);
    if (error)
        return fail(ErrorCode::kIo,
                    fmt::format("keeping what an earlier run has left in {}: {}; name another "
                                "folder",
                                folder, error.message()));
    return {};
}

json::object sample_json(const PhaseResult& result, size_t n) {
    const Answer& answer = result.outcome.answers[n];
    json::array events;
    for (const double at : answer.event_s)
        events.emplace_back(at - answer.due_s);
    return {{"phase", result.plan.name},
            {"request", n},
            {"due", answer.due_s},
            {"sent", answer.sent_s},
            {"end", answer.end_s},
            {"status", answer.status},
            {"done", answer.done},
            {"error", answer.error},
            {"tokens", answer.tokens},
            {"eventsAfterDue", std::move(events)},
            {"sha256", answer.done ? sha256_hex(answer.text) : ""}};
}

} // namespace

Result<Report> Report::open(std::string folder, bool as_json) {
    Report report(std::move(folder), as_json);
    if (report.folder_.empty())
        return report;
    std::error_code error;
    std::filesystem::create_directories(report.folder_, error);
    if (error)
        return fail(ErrorCode::kIo,
                    fmt::format("making the folder {}: {}", report.folder_, error.message()));
    BERTH_TRY(keep_earlier(report.folder_));
    BERTH_TRY(append(report.folder_ + "/batch.csv",
                     "phase,seconds,tokens,prefilled,gatePauses,requestsDone\n"));
    return report;
}

Status Report::add_line(const json::object& line, const std::string& words) {
    const std::string text = compact_json(line) + "\n";
    if (as_json_)
        print(text);
    else
        notes_ += words + "\n";
    return folder_.empty() ? Status() : append(folder_ + "/report.jsonl", text);
}

Status Report::write_samples(const PhaseResult& result) const {
    std::string samples;
    for (size_t n = 0; n < result.outcome.answers.size(); ++n)
        samples += compact_json(sample_json(result, n)) + "\n";
    std::string batch;
    for (const BatchPoint& point : result.outcome.batch)
        batch += fmt::format("{},{:.4f},{},{},{},{}\n", result.plan.name, point.at_s,
                             point.counters.tokens, point.counters.prefilled,
                             point.counters.gate_pauses, point.counters.requests_done);
    BERTH_TRY(append(folder_ + "/samples.jsonl", samples));
    BERTH_TRY(append(folder_ + "/batch.csv", batch));
    return write_text(folder_ + "/timeline-" + result.plan.name + ".svg", timeline_page(result));
}

Status Report::add_phase(const std::vector<PhaseResult>& results, const json::object& line) {
    phases_.push_back(line);
    const std::string text = compact_json(line) + "\n";
    if (as_json_)
        print(text);
    if (folder_.empty())
        return {};
    BERTH_TRY(append(folder_ + "/report.jsonl", text));
    if (!results.back().was_run())
        return {};
    BERTH_TRY(write_samples(results.back()));
    return write_text(folder_ + "/latencies.svg", latency_page(results));
}

void Report::print_table() const {
    if (as_json_)
        return;
    Table table({"PHASE", "TTFT P50/90/99 MS", "P99 OF ALONE'S", "TPOT P50/90/99 MS",
                 "P99 OF ALONE'S", "GAP P99 OF ALONE'S", "SLO KEPT", "BATCH TOKENS/S",
                 "OF IDLE TIME", "WATTS"});
    std::string troubles;
    for (const json::object& line : phases_) {
        const json::object* batch = object_at(line, "batch");
        table.add(
            {text_at(line, "phase"), percentiles_text(line, "ttftMs"), ratio_text(line, "ttftMs"),
             percentiles_text(line, "tpotMs"), ratio_text(line, "tpotMs"),
             ratio_text(line, "gapMs"), part_text(object_at(line, "slo"), "attained"),
             batch != nullptr ? fmt::format("{:.0f}", real_at(*batch, "tokensPerSecond")) : "",
             part_text(batch, "ofIdleTimesWorth"),
             line.contains("watts") ? fmt::format("{:.0f}", real_at(line, "watts")) : ""});
        if (const std::string trouble = trouble_of(line); !trouble.empty())
            troubles += fmt::format("{}: {}\n", text_at(line, "phase"), trouble);
    }
    print(table.text(false) + troubles +
          "In brackets: 95 % intervals; latencies by paired bootstrap, batch by bootstrap over "
          "seconds, SLO by Wilson's.\n" +
          notes_);
}

} // namespace berth::cli::bench
