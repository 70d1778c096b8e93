// SPDX-License-Identifier: Apache-2.0
// Goal: whatever happens to a node in whatever order, all that docs/architecture.md says must hold
// holds, and once faults cease everything settles. Method: simulated nodes from seeds, of which one
// in fifty keeps its records in the real SQLite store; a failing seed is made small and printed.
// BERTH_SIMULATE_SEEDS, _EVENTS, _FIRST make other runs of it, _DEVICES and _INSTANCES larger
// nodes:
//
//     BERTH_SIMULATE_SEEDS=10000 BERTH_SIMULATE_EVENTS=1000 simulator_test
//     BERTH_SIMULATE_SEEDS=1 BERTH_SIMULATE_DEVICES=16 BERTH_SIMULATE_INSTANCES=1000 simulator_test
#include "sqlite_records.h"

#include "scheduler/simulate/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <vector>

namespace berth::simulate {

namespace {

constexpr size_t kReportsMax = 3; // of rules that are broken; the others are named

// What the runs of CI must have come by.
constexpr std::string_view kReached =
    "Running,Suspended,Evicted,Resuming,Preempting,ShortReclaim,InsufficientMemory,"
    "LoadStalled,Unkillable,Copied,TierFailed,CheckpointChanged,Cordoned,Held,Resident,"
    "Dropped,Removed,WeightsLost,HeldBesides,PrivateLoad,DropFailed,CopyFailed,"
    "EndedMeanwhile,Starving,GrowFailed,RolloutBegun,RolloutComplete,RolloutFailed,"
    "RolloutUndone,RolloutPaused,RolloutReverted,rolled out 1 to 2 ranks,"
    "rolled out 2 to 1 ranks,rolled out 2 to 2 ranks,rolled out 1 to 2 ranks in place,"
    "rolled out 2 to 1 ranks in place,send Pause,send Resume,"
    "send Offload,send Restore,send Stop,send Shrink,send Grow,load from ,"
    "load from host-tier,load from image,tidy images,copy from host-0 to host-tier,"
    "copy from host-tier to image,copy from GPU-0 to image";

std::vector<std::string> words_of(std::string_view list) {
    std::vector<std::string> words;
    for (size_t at = 0, end = 0; at <= list.size(); at = end + 1) {
        end = std::min(list.find(',', at), list.size());
        words.emplace_back(list.substr(at, end - at));
    }
    return words;
}

uint64_t number(const char* name, uint64_t fallback) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

// One seed in fifty on the real store.
Outcome run(const Plan& plan) {
    if (plan.seed % 50 == 0)
        return World(plan, std::make_unique<SqliteRecords>()).run();
    return simulate(plan);
}

struct Broken {
    std::vector<uint64_t> seeds;
    Plan plan;
    Outcome outcome; // of the first
};

} // namespace

TEST(Simulator, WhateverHappensAllThatMustHoldHolds) {
    const uint64_t first = number("BERTH_SIMULATE_FIRST", 1);
    const uint64_t seeds = number("BERTH_SIMULATE_SEEDS", 2000);
    std::map<std::string, Broken> broken;
    std::set<std::string> reached;
    uint64_t events = 0, lives = 0;
    const auto began = std::chrono::steady_clock::now();
    for (uint64_t seed = first; seed < first + seeds; ++seed) {
        Plan plan;
        plan.seed = seed;
        plan.events = number("BERTH_SIMULATE_EVENTS", 300);
        plan.limits.devices_min = number("BERTH_SIMULATE_DEVICES", 1);
        plan.limits.instances_min = number("BERTH_SIMULATE_INSTANCES", 1);
        Outcome outcome = run(plan);
        events += outcome.events;
        lives += outcome.lives;
        reached.insert(outcome.reached.begin(), outcome.reached.end());
        if (!outcome.found)
            continue;
        Broken& rule = broken[outcome.found->rule];
        rule.seeds.push_back(seed);
        if (rule.seeds.size() == 1) {
            rule.plan = plan;
            rule.outcome = std::move(outcome);
        }
    }
    // The runs reach what they are there for.
    if (first == 1 && seeds >= 2000)
        for (const std::string& one : words_of(kReached))
            EXPECT_TRUE(reached.contains(one)) << one;
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    std::cout << seeds << " seeds, " << events << " events, " << lives << " deaths of berthd, "
              << static_cast<uint64_t>(static_cast<double>(events) / seconds)
              << " events a second\n";
    RecordProperty("events", std::to_string(events));
    size_t reports = 0;
    for (const auto& [rule, one] : broken) {
        std::string which;
        for (size_t n = 0; n < one.seeds.size() && n < 8; ++n)
            which += " " + std::to_string(one.seeds[n]);
        std::string text = one.outcome.found->text;
        if (++reports <= kReportsMax)
            text = report(shrink(one.plan, one.outcome, run), run);
        ADD_FAILURE() << "rule '" << rule << "' is broken by " << one.seeds.size()
                      << " seeds:" << which << "\n"
                      << text;
    }
}

} // namespace berth::simulate
