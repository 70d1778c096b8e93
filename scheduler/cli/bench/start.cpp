// SPDX-License-Identifier: Apache-2.0
// Starting an evicted instance again, its weights resident: forked from berthd's zygote and, in
// turn with that in the same run, by exec. For a start by exec the zygote is killed beforehand,
// which costs nobody anything: berthd starts another one second later.
#include "base/process.h"
#include "scheduler/cli/bench/engine_calls.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/node_calls.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <csignal>
#include <map>

namespace berth::cli::bench {

namespace {

constexpr std::chrono::seconds kTokenMax{20};
constexpr std::chrono::seconds kZygoteMax{60};
constexpr std::chrono::milliseconds kLookEvery{5};
constexpr int kRounds = 10;
constexpr int kFloorRounds = 5;

// Of the starts of one way.
struct Way {
    std::vector<double> running, token;
    std::map<std::string, std::vector<double>> phases;
};

struct Starts {
    std::vector<double> evict;
    std::map<std::string, Way> ways; // by what berthd says it has done
    std::string device;
    std::string no_fork; // why there is no zygote
    std::string model;   // as the instance's own server calls it; empty: it has none
};

// Until the first token is there: of a server's first request, else of the work it has taken up.
Result<std::optional<double>> first_token(const AdminClient& client, const std::string& instance,
                                          const std::string& model, Clock::time_point began) {
    if (model.empty())
        return until_token(client, instance, 0, began, kTokenMax);
    BERTH_ASSIGN(const json::object running, instance_of(client, instance));
    BERTH_TRY(
        ask_engine(text_at(running, "endpoint"), "POST", "/v1/completions",
                   {{"model", model}, {"prompt", "Hello"}, {"max_tokens", 1}, {"temperature", 0}}));
    return std::optional(milliseconds_since(began));
}

struct Zygote {
    std::string state, why;
    int pid = 0;
};

Result<Zygote> zygote_of(const AdminClient& client) {
    BERTH_ASSIGN(json::value reply, client.get("/v1/node"));
    const auto* shown = reply.is_object() ? reply.get_object().if_contains("zygote") : nullptr;
    if (shown == nullptr || !shown->is_object())
        return fail(ErrorCode::kMismatch, "this berthd knows no zygote: it is an older one than "
                                          "this berth");
    const json::object& zygote = shown->get_object();
    return Zygote{text_at(zygote, "state"), text_at(zygote, "why"),
                  static_cast<int>(number_at(zygote, "pid"))};
}

// Empty when it is ready, else why there will be none.
Result<std::string> await_zygote(const AdminClient& client) {
    const auto end = Clock::now() + kZygoteMax;
    for (;;) {
        BERTH_ASSIGN(const Zygote now, zygote_of(client));
        if (now.state == "ready")
            return std::string();
        if (now.state == "off" || now.state == "unfit" || Clock::now() > end)
            return now.why.empty() ? "it is " + now.state : now.why;
        pause_between_looks(kLookEvery);
    }
}

Status end_zygote(const AdminClient& client) {
    BERTH_ASSIGN(const Zygote before, zygote_of(client));
    if (before.pid == 0)
        return {};
    BERTH_ASSIGN(const ProcessId id, process_id(before.pid));
    BERTH_ASSIGN(const Process process, Process::adopt(id));
    BERTH_TRY(process.signal(SIGKILL));
    const auto end = Clock::now() + kZygoteMax;
    while (Clock::now() < end) {
        BERTH_ASSIGN(const Zygote now, zygote_of(client));
        if (now.pid != before.pid)
            return {};
        pause_between_looks(kLookEvery);
    }
    return fail(ErrorCode::kDeadlineExceeded, "berthd does not see that its zygote was killed");
}

void add_phases(const json::object& instance, Way& way) {
    const auto* phases = instance.if_contains("phases");
    if (phases == nullptr || !phases->is_object())
        return;
    for (const auto& [name, ms] : phases->get_object())
        if (ms.is_number())
            way.phases[std::string(name)].push_back(real_at(phases->get_object(), name));
}

Status one_round(const AdminClient& client, const Options& options, bool by_fork, Starts& starts) {
    const std::string target = "/v1/instances/" + http::percent_encode(options.instance);
    BERTH_ASSIGN(json::object before, instance_of(client, options.instance));
    starts.device = text_at(before, "device");
    BERTH_ASSIGN(Finished evicted, run_to_end(client, target + ":preempt",
                                              {{"mode", "Evict"}, {"reason", "berth bench"}}));
    starts.evict.push_back(evicted.wall_ms);
    if (by_fork) {
        BERTH_ASSIGN(starts.no_fork, await_zygote(client));
    } else {
        BERTH_TRY(end_zygote(client));
    }
    auto began = Clock::now();
    BERTH_ASSIGN(Finished resumed,
                 run_to_end(client, target + ":resume", {{"reason", "berth bench"}}));
    BERTH_ASSIGN(double running_ms, until_running(client, options.instance, began));
    std::optional<double> token;
    if (!starts.model.empty() || tokens_done(before) > 0) {
        BERTH_ASSIGN(token, first_token(client, options.instance, starts.model, began));
    }
    BERTH_ASSIGN(json::object after, instance_of(client, options.instance));
    Way& way = starts.ways[text_at(after, "startedBy")];
    if (by_fork && starts.no_fork.empty() && text_at(after, "startedBy") == "exec")
        starts.no_fork = text_at(after, "execBecause");
    way.running.push_back(running_ms);
    if (token)
        way.token.push_back(*token);
    add_phases(after, way);
    return {};
}

json::object medians(const Way& way) {
    json::object shown;
    for (const auto& [name, samples] : way.phases)
        shown[name] = percentile(samples, 50);
    return shown;
}

struct Floor {
    std::vector<double> samples;
    std::string is;
};

// Of a start by exec its program's own; of a fork what the engine itself takes.
Floor floor_of(const std::string& how, const Way& way) {
    if (how == "forked") {
        const auto ready = way.phases.find("ready");
        return Floor{ready == way.phases.end() ? std::vector<double>() : ready->second,
                     "what the engine itself says it took from its fork until it was ready, in the "
                     "same starts"};
    }
    auto exec = program_starts({program_directory() + "/berth-engine", "--help"}, kFloorRounds);
    if (!exec)
        return Floor{{}, "none: " + exec.error().message};
    return Floor{std::move(*exec),
                 "starting and ending berth-engine --help, in this run: process start and its "
                 "libraries, no context, no warm-up"};
}

void add_figures(const std::string& how, const Way& way, bool serves, json::object facts,
                 std::vector<Figure>& figures) {
    const Floor floor = floor_of(how, way);
    const std::string covers =
        how == "forked"
            ? "forked from the zygote: context, attach, warm-up are in it, loading libraries is not"
            : "by exec: process start, libraries, context, attach and warm-up are in it";
    facts["how"] = how;
    json::object with_phases = facts;
    with_phases["phasesMs"] = medians(way);
    figures.push_back(
        {"start", how + "-running", way.running, floor.samples, floor.is,
         "request to resume an evicted instance until Running, weights resident, " + covers,
         with_phases});
    if (!way.token.empty())
        figures.push_back({"start", how + "-token", way.token, floor.samples, floor.is,
                           serves ? "the same until the client has the first token of its first "
                                    "request, sent once it was seen Running"
                                  : "the same until berthd has its report of the first token",
                           facts});
}

} // namespace

Status start(const AdminClient& client, const Options& options) {
    Starts starts;
    BERTH_ASSIGN(const json::object before, instance_of(client, options.instance));
    BERTH_ASSIGN(starts.model, served_model(before));
    const int rounds = options.rounds_or(kRounds);
    for (int round = 0; round < rounds; ++round) {
        if (starts.no_fork.empty())
            BERTH_TRY(one_round(client, options, true, starts));
        BERTH_TRY(one_round(client, options, false, starts));
    }
    json::object facts{{"instance", options.instance}, {"device", starts.device}};
    if (!starts.no_fork.empty())
        facts["notForked"] = starts.no_fork;
    std::vector<Figure> figures;
    for (const auto& [how, way] : starts.ways)
        add_figures(how, way, !starts.model.empty(), facts, figures);
    figures.push_back(
        {"start",
         "evict",
         starts.evict,
         {},
         "none",
         "request to evict until berthd's reply that the process has ended and its bytes are free",
         facts});
    print_figures(figures, options.json);
    return {};
}

} // namespace berth::cli::bench
