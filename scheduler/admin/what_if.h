// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/reducer.h"

#include <map>
#include <string>
#include <vector>

// What would happen if documents held: the node's own reducer, played on a copy of its state.
// Engines, loaders and drivers do at once what they are told, so times are those of waiting alone
// (an exempt time, a hysteresis). Nothing is carried out. Pure; any thread.
namespace berth {

struct WhatIf {
    struct Question {
        policies::Documents documents;             // that would hold, checked
        std::vector<std::string> asked;            // names of the instances that it is about
        std::map<std::string, uint64_t> set_bytes; // of a model's path, where it was never loaded
    };
    struct Step {
        std::string action; // Drop, Pause, Shrink, Offload, Evict, Load, Start, Resume, Grow
        std::string object; // "instance/nightly", "weights/0123...", a model's path
        std::string device;
        uint64_t bytes = 0; // that come free, or are taken
        std::string why;
        Nanoseconds after{0};
    };
    struct Outcome {
        std::string instance;
        std::string class_name;
        int64_t priority = 0;
        enum class Verdict { kRuns, kUnchanged, kWaits } verdict = Verdict::kWaits;
        std::vector<std::string> devices;
        uint64_t grant_bytes = 0; // on each
        Nanoseconds after{0};     // kRuns
        std::string reason;       // why it waits; of kRuns: why it does not start at once
        std::string message;
    };
    struct Answer {
        std::vector<Outcome> outcomes;
        std::vector<Step> steps; // in order
        std::vector<node::Decision> decisions;
        std::vector<std::string> under_way; // what is taken as done already
    };

    static Answer play(node::NodeState state, const Question& question, node::TimePoint now);
};

std::string_view to_string(WhatIf::Outcome::Verdict verdict); // "Runs", "Unchanged", "Waits"

} // namespace berth
