// SPDX-License-Identifier: Apache-2.0
// Goal: a difference names every field that changes, with both values, and who would restart.
// Method: pairs of documents.
#include "policies/difference.h"
#include "policies/yaml.h"

#include <gtest/gtest.h>

namespace berth::policies {

namespace {

constexpr const char* kBase = R"(
kind: ColocationPolicy
metadata: {name: p}
spec:
  triggers:
    - {class: online, on: RequestArrival}
    - {class: online, on: QueueDepth, above: 4}
---
kind: Model
metadata: {name: m}
spec: {path: /m}
---
kind: Instance
metadata: {name: i}
spec: {model: m, resources: {limits: {memory: 1Gi}}, engine: {command: [e]}}
---
kind: Instance
metadata: {name: j}
spec: {engine: {driver: process, command: [e, "1"]}}
)";

Documents read(const std::string& text) {
    Result<Documents> documents = parse_documents(text, "/f/f.yaml");
    EXPECT_TRUE(documents) << documents.error().message;
    return documents.value_or(Documents{});
}

// What changes when each of the replacements is made in the base.
Difference after(const std::vector<std::pair<std::string, std::string>>& replacements) {
    std::string text = kBase;
    for (const auto& [from, to] : replacements) {
        const size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        text.replace(at, from.size(), to);
    }
    return difference_between(read(kBase), read(text));
}

using Changes = std::vector<FieldChange>;

} // namespace

TEST(Difference, NothingChangesBetweenEquals) {
    const Difference none = difference_between(read(kBase), read(kBase));
    EXPECT_TRUE(none.changes.empty());
    EXPECT_TRUE(none.restarted.empty() && none.added.empty() && none.removed.empty());
}

TEST(Difference, AFieldIsShownWithBothValuesAndADefaultIsOne) {
    const Difference live = after({{"memory: 1Gi", "memory: 2Gi"}});
    EXPECT_EQ(live.changes,
              (Changes{{"Instance/i", "spec.resources.limits.memory", "1Gi", "2Gi"}}));
    EXPECT_TRUE(live.restarted.empty()) << "memory changes live";
    EXPECT_EQ(after({{"spec:\n", "spec:\n  mode: Observe\n"}}).changes,
              (Changes{{"ColocationPolicy", "spec.mode", "Enforce", "Observe"}}));
    EXPECT_EQ(after({{"spec:\n", "spec:\n  memory: {deviceReserve: 1Gi}\n"}}).changes,
              (Changes{{"ColocationPolicy", "spec.memory.deviceReserve", "auto", "1Gi"}}));
}

TEST(Difference, ElementsOfListsAreToldByNameElseByWhatTheySay) {
    EXPECT_EQ(after({{"above: 4", "above: 5"}}).changes,
              (Changes{{"ColocationPolicy", "spec.triggers", "",
                        "{class: online, on: QueueDepth, above: 5, for: 0}"},
                       {"ColocationPolicy", "spec.triggers",
                        "{class: online, on: QueueDepth, above: 4, for: 0}", ""}}));
    const std::string classes =
        "spec:\n  priorityClasses:\n    - {name: online, value: 900, preemptionPolicy: "
        "PreemptLowerPriority, preemptible: false}\n    - {name: batch, value: 100, globalDefault: "
        "true}\n";
    EXPECT_EQ(after({{"spec:\n", classes}}).changes,
              (Changes{{"ColocationPolicy", "spec.priorityClasses[online].value", "1000", "900"}}));
}

TEST(Difference, NamesInstancesWhoseProcessMustBeAnotherOne) {
    EXPECT_EQ(after({{"\"1\"", "\"2\""}}).restarted, std::vector<std::string>{"j"});
    EXPECT_EQ(after({{"path: /m", "path: /n"}}).restarted, std::vector<std::string>{"i"});
    EXPECT_TRUE(after({{"path: /m", "path: /m, pin: true"}}).restarted.empty());
}

TEST(Difference, DocumentsComeAndGo) {
    const Difference renamed = after({{"name: j", "name: k"}});
    EXPECT_EQ(renamed.changes,
              (Changes{{"Instance/k", "", "", "new"}, {"Instance/j", "", "present", ""}}));
    EXPECT_EQ(renamed.added, std::vector<std::string>{"k"});
    EXPECT_EQ(renamed.removed, std::vector<std::string>{"j"});
}

} // namespace berth::policies
