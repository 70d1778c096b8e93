// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/nvml.h"
#include "scheduler/cli/bench/daemon_reads.h"
#include "scheduler/cli/bench/decisions.h"
#include "scheduler/cli/bench/idle_node.h"
#include "scheduler/cli/bench/node_calls.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <iterator>

namespace berth::cli::bench {

namespace {

constexpr std::chrono::seconds kIdleLook{2};
constexpr std::chrono::seconds kSettle{1}; // what a start leaves to be written
constexpr size_t kEngines = 16;

// By the driver's word, over all GPUs; nothing where there is no driver.
std::optional<uint64_t> gpu_bytes_of(int pid) {
    auto nvml = Nvml::open();
    auto gpus = nvml ? nvml->devices() : fail(ErrorCode::kUnsupported, "no driver");
    if (!gpus)
        return std::nullopt;
    uint64_t bytes = 0;
    for (const NvmlDevice& gpu : *gpus)
        if (auto processes = nvml->processes(gpu.uuid))
            for (const NvmlProcess& process : *processes)
                bytes += process.pid == pid ? process.used_bytes.value_or(0) : 0;
    return bytes;
}

Result<std::vector<Figure>> idle_figures(const AdminClient& client, const Options& options,
                                         const char* which) {
    std::vector<double> resident;
    std::vector<double> idle_percent;
    std::optional<uint64_t> gpu_bytes;
    pause_between_looks(kSettle);
    for (int round = 0; round < options.rounds_or(3); ++round) {
        BERTH_ASSIGN(json::value reply, client.get("/v1/node"));
        if (!reply.is_object())
            return fail(ErrorCode::kCorrupt, "berthd's reply is no node");
        const json::object& node = reply.get_object();
        uint64_t pid = number_at(node, "pid");
        resident.push_back(static_cast<double>(number_at(node, "rssBytes")));
        gpu_bytes = gpu_bytes_of(static_cast<int>(pid));
        BERTH_ASSIGN(double before, cpu_seconds(pid));
        auto began = Clock::now();
        pause_between_looks(kIdleLook);
        BERTH_ASSIGN(double after, cpu_seconds(pid));
        idle_percent.push_back(100e3 * (after - before) / milliseconds_since(began));
    }
    const json::object facts{{"node", which}};
    std::vector<Figure> figures{
        {"daemon",
         "resident",
         resident,
         {},
         "none; the goal is 40 MB at most",
         "berthd's resident memory",
         facts,
         "bytes"},
        {"daemon",
         "cpu",
         idle_percent,
         {},
         "none; the goal is under 0.5 % of a core when idle",
         "berthd's CPU time while this bench asks nothing, with what its engines ask of it",
         facts,
         "%"}};
    Figure gpu{"daemon",
               "gpu",
               {},
               {},
               "none; the goal is 0",
               gpu_bytes ? "berthd's memory on all GPUs, by the driver's word"
                         : "not measured: there is no NVIDIA driver here",
               facts,
               "bytes"};
    if (gpu_bytes)
        gpu.samples.push_back(static_cast<double>(*gpu_bytes));
    figures.push_back(std::move(gpu));
    return figures;
}

} // namespace

// What stands still is measured on the node that is asked for, if there is one; what would disturb
// it on one of the bench's own.
Status daemon(const AdminClient& client, const Options& options) {
    const std::string programs = options.berthd.empty() ? program_directory() : options.berthd;
    auto running = client.get("/v1/node");
    if (!running && running.error().reason != kNotReachable)
        return fail(running.error());
    BERTH_ASSIGN(std::unique_ptr<OwnNode> own, start_idle_node(programs, kEngines));
    BERTH_ASSIGN(std::vector<Figure> figures,
                 idle_figures(running ? client : own->client(), options,
                              running ? "the one that runs here" : "the bench's own, fresh"));
    auto take = [&figures](std::vector<Figure> more) {
        std::move(more.begin(), more.end(), std::back_inserter(figures));
    };
    BERTH_ASSIGN(std::vector<Figure> reads, read_figures(*own, options));
    own.reset();
    take(std::move(reads));
    for (bool crowded : {false, true}) {
        const NodeShape shape{options.devices, options.instances, crowded};
        BERTH_ASSIGN(std::vector<Figure> decisions, decision_figures(shape, options.events));
        take(std::move(decisions));
    }
    print_figures(figures, options.json);
    return {};
}

} // namespace berth::cli::bench
