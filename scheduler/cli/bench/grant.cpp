// SPDX-License-Identifier: Apache-2.0
#include "base/round.h"
#include "base/units.h"
#include "cache/memory/device.h"
#include "scheduler/cli/bench/bench.h"
#include "scheduler/cli/bench/figures.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

namespace berth::cli::bench {

namespace {

struct Samples {
    std::vector<double> take, give, take_step, give_step;
};

Result<double> resized(GrantArena& arena, uint64_t bytes) {
    const auto began = Clock::now();
    BERTH_TRY(arena.resize(bytes));
    return milliseconds_since(began);
}

// All of it there and back, and its last handle alone.
Status one_round(Device& device, GrantArena& arena, uint64_t bytes, Samples& samples) {
    const uint64_t step = arena.step_bytes();
    BERTH_ASSIGN(const double take, resized(arena, bytes));
    if (device.capabilities().cpu_addressable) // host pages exist once they are written
        std::memset(arena.data(), 1, arena.bytes());
    BERTH_ASSIGN(const double give_step, resized(arena, bytes - step));
    BERTH_ASSIGN(const double take_step, resized(arena, bytes));
    BERTH_ASSIGN(const double give, resized(arena, 0));
    samples.take.push_back(take);
    samples.give.push_back(give);
    samples.take_step.push_back(take_step);
    samples.give_step.push_back(give_step);
    return {};
}

Result<Samples> measure(const Options& options, uint64_t step, uint64_t bytes, int rounds) {
    ::setenv("BERTH_GRANT_STEP", std::to_string(step).c_str(), 1); // read when a device is opened
    BERTH_ASSIGN(std::unique_ptr<Device> device, open_device(options.device));
    BERTH_ASSIGN(std::unique_ptr<GrantArena> arena, device->create_grant(bytes));
    Samples warm_up, samples;
    BERTH_TRY(one_round(*device, *arena, bytes, warm_up));
    for (int round = 0; round < rounds; ++round)
        BERTH_TRY(one_round(*device, *arena, bytes, samples));
    return samples;
}

} // namespace

Status grant(const AdminClient&, const Options& options) {
    BERTH_ASSIGN(std::unique_ptr<Device> device, open_device(options.device));
    const uint64_t unit = device->capabilities().granularity_bytes;
    const uint64_t chosen = device->capabilities().grant_step_bytes;
    BERTH_ASSIGN(const uint64_t asked, parse_bytes(options.memory));
    const uint64_t least = std::max(unit, uint64_t{2} << 20);
    const uint64_t bytes = round_up(asked, least);
    std::vector<uint64_t> steps;
    for (uint64_t step = uint64_t{1} << 30; step >= least; step /= 2)
        if (bytes % step == 0)
            steps.push_back(step);
    const int rounds = options.rounds_or(10);
    // Of one handle: what nothing can be faster than.
    BERTH_ASSIGN(const Samples whole, measure(options, bytes, bytes, rounds));
    const std::string floor = "the same bytes as one handle, in this run";
    std::vector<Figure> figures;
    for (const uint64_t step : steps) {
        BERTH_ASSIGN(const Samples samples, measure(options, step, bytes, rounds));
        const json::object facts{{"device", options.device},
                                 {"bytes", bytes},
                                 {"handleBytes", step},
                                 {"default", step == chosen}};
        const std::string size = format_bytes(step);
        figures.push_back({"grant", "take, " + size, samples.take, whole.take, floor,
                           "create, map and set access of all handles", facts});
        figures.push_back({"grant", "give back, " + size, samples.give, whole.give, floor,
                           "a fence, then unmap and free of all handles", facts});
        figures.push_back({"grant",
                           "take one, " + size,
                           samples.take_step,
                           {},
                           "",
                           "one more handle behind the others",
                           facts});
        figures.push_back({"grant",
                           "give one back, " + size,
                           samples.give_step,
                           {},
                           "",
                           "a fence, then the last handle",
                           facts});
    }
    print_figures(figures, options.json);
    return {};
}

} // namespace berth::cli::bench
