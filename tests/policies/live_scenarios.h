// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/node/scenario_runner.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace berth::policies::test {

// A scenario about one field that is changed while a node runs (tests/policies/live/*.txt): its
// documents are made here, what the node does about them is played by the runner of tests/node.
//
//     base FILE ...            the documents it begins with, one after the other
//     with OLD -> NEW ; ...    changes them before anything is applied
//     when begun               applies them
//     when changed OLD -> NEW ; ...    each OLD stands there exactly once; "\n" is a line's end
//     when added FILE, when removed NAME
struct LiveScenario {
    node::test::Scenario played;   // "when applied FILE" in place of the lines above
    std::string field;             // "ColocationPolicy.spec.mode": how the name begins
    std::set<std::string> changed; // the fields that differ over its `when changed` lines
    std::string wrong;             // why it cannot be played; empty: it can
};

// Writes the documents into `folder`, from which the runner reads them.
std::vector<LiveScenario> read_live_scenarios(const std::filesystem::path& from,
                                              const std::filesystem::path& folder);

// The fields that differ, as the schema names them:
// "ColocationPolicy.spec.priorityClasses[].value".
std::set<std::string> changed_fields(const Documents& before, const Documents& after);

// Every field of the kinds that may change on a running node, leaves only, as the readers ask for
// them.
std::set<std::string> live_fields();

} // namespace berth::policies::test
