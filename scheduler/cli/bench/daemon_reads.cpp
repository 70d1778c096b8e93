// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/daemon_reads.h"

#include "scheduler/cli/bench/admin_load.h"
#include "scheduler/cli/bench/bare_http.h"
#include "scheduler/cli/bench/node_calls.h"

#include <fmt/format.h>

#include <cstdlib>
#include <thread>

namespace berth::cli::bench {

namespace {

constexpr double kChangesPerSecond = 200;
constexpr int kGoalReadsPerSecond = 10'000;
constexpr int kGoalP99Ms = 5;

struct Measured {
    LoadOutcome load;
    double node_cpu = 0; // of berthd, cores
};

Result<Measured> measure(const OwnNode& node, const LoadPlan& plan) {
    Measured measured;
    const auto pid = static_cast<uint64_t>(node.pid());
    BERTH_ASSIGN(double before, cpu_seconds(pid));
    BERTH_ASSIGN(measured.load, run_load(plan));
    BERTH_ASSIGN(double after, cpu_seconds(pid));
    measured.node_cpu = (after - before) / measured.load.seconds;
    return measured;
}

double reads_per_second(const LoadOutcome& load) {
    return static_cast<double>(load.read_ms.size()) / load.seconds;
}

// What the machine did besides: a figure from a busy one is a busy one's.
double load_average() {
    double average = 0;
    return ::getloadavg(&average, 1) == 1 ? average : 0;
}

Figure reads_figure(const char* name, const Measured& measured, const LoadOutcome& floor,
                    const LoadPlan& plan, std::string covers) {
    const double rate = reads_per_second(measured.load);
    json::object facts{{"perSecond", rate},
                       {"floorPerSecond", reads_per_second(floor)},
                       {"goalPerSecond", kGoalReadsPerSecond},
                       {"goalP99Ms", kGoalP99Ms},
                       {"connections", plan.connections},
                       {"instances", plan.instances.size()},
                       {"changesPerSecond", measured.load.changes_per_second},
                       {"berthdCores", measured.node_cpu},
                       {"generatorCores", measured.load.own_cpu_seconds / measured.load.seconds},
                       {"cores", std::thread::hardware_concurrency()},
                       {"loadAverage", load_average()}};
    return {"daemon",
            name,
            measured.load.read_ms,
            floor.read_ms,
            "the same generator against a thread that answers with as many bytes and does nothing "
            "else, in this run",
            std::move(covers),
            std::move(facts)};
}

} // namespace

Result<std::vector<Figure>> read_figures(const OwnNode& node, const Options& options) {
    LoadPlan plan;
    plan.socket = node.admin_socket();
    plan.duration = std::chrono::milliseconds(static_cast<int64_t>(options.seconds * 1e3));
    plan.instances = node.instances();
    plan.reads = {"/v1/instances",
                  "/v1/instances/" + plan.instances.front(),
                  "/v1/instances/" + plan.instances.back(),
                  "/v1/devices",
                  "/healthz",
                  "/v1/operations/{operation}"};
    // One operation to be asked for, while there is no other.
    const std::string target = "/v1/instances/" + plan.instances.front();
    BERTH_TRY(run_to_end(node.client(), target + ":preempt", {{"mode", "Pause"}}));
    BERTH_ASSIGN(Finished resumed, run_to_end(node.client(), target + ":resume", {}));
    plan.operation = text_at(resumed.operation, "id");

    BERTH_ASSIGN(Measured alone, measure(node, plan));
    LoadPlan busy = plan;
    busy.changes_per_second = kChangesPerSecond;
    BERTH_ASSIGN(Measured beside, measure(node, busy));

    LoadPlan bare = plan;
    bare.socket = node.folder() + "/bare.sock";
    const uint64_t reads = std::max<uint64_t>(alone.load.read_ms.size(), 1);
    BERTH_ASSIGN(std::unique_ptr<BareHttp> server,
                 BareHttp::start(bare.socket, alone.load.body_bytes / reads));
    BERTH_ASSIGN(LoadOutcome floor, run_load(bare));

    const char* mix = "GETs of /v1/instances, one instance (two of six), /v1/devices, /healthz and "
                      "one operation over kept-alive connections of the Unix admin socket, "
                      "generator included";
    std::vector<Figure> figures;
    figures.push_back(reads_figure("reads", alone, floor, plan, mix));
    figures.push_back(reads_figure("reads-while-changing", beside, floor, busy,
                                   fmt::format("{}; beside it {} preemptions (Pause) and "
                                               "resumptions a second of engines that do nothing "
                                               "but obey",
                                               mix, kChangesPerSecond)));
    figures.push_back(
        {"daemon",
         "change",
         beside.load.change_ms,
         {},
         "none",
         "one of those: from its request until its operation has succeeded and is on "
         "disk",
         {{"perSecond", beside.load.changes_per_second}, {"goalPerSecond", kChangesPerSecond}}});
    return figures;
}

} // namespace berth::cli::bench
