// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/trace.h"

#include "base/units.h"
#include "policies/yaml.h"

#include <charconv>
#include <sstream>

namespace berth::simulate {

namespace {

constexpr size_t kLogLinesShown = 120;

std::string micro_text(Nanoseconds time) {
    return std::to_string(std::chrono::ceil<std::chrono::microseconds>(time).count()) + "us";
}

} // namespace

Plan spelled_out(const Plan& plan, const Outcome& outcome) {
    Plan exact = plan;
    exact.script = outcome.script;
    exact.calm_at = std::chrono::ceil<std::chrono::microseconds>(outcome.calm_at);
    return exact;
}

std::string to_text(const Plan& plan) {
    std::string text = "seed " + std::to_string(plan.seed) + "\n";
    if (plan.calm_at)
        text += "calm " + micro_text(*plan.calm_at) + "\n";
    else
        text += "events " + std::to_string(plan.events) + "\n";
    for (const std::string& name : plan.without)
        text += "without " + name + "\n";
    for (const std::string& fault : plan.withheld)
        text += "withhold " + fault + "\n";
    if (plan.script)
        for (const Stimulus& one : *plan.script)
            text += to_text(one) + "\n";
    return text;
}

Result<Plan> plan_from(const std::string& text) {
    Plan plan;
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
        const size_t space = line.find(' ');
        if (line.empty() || line.front() == '#')
            continue;
        const std::string word = line.substr(0, space);
        const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
        const std::string where = "line " + std::to_string(number);
        if (word == "seed" || word == "events") {
            uint64_t& value = word == "seed" ? plan.seed : plan.events;
            const auto [end, error] =
                std::from_chars(rest.data(), rest.data() + rest.size(), value);
            if (error != std::errc() || end != rest.data() + rest.size())
                return fail(ErrorCode::kInvalidArgument,
                            std::string(where).append(": '").append(rest).append("' is no number"));
        } else if (word == "calm") {
            auto at = parse_duration(rest);
            if (!at)
                return fail_in(where, at.error());
            plan.calm_at = *at;
        } else if (word == "without") {
            plan.without.insert(rest);
        } else if (word == "withhold") {
            plan.withheld.insert(rest);
        } else {
            auto one = stimulus_from(line);
            if (!one)
                return fail_in(where, one.error());
            if (!plan.script)
                plan.script.emplace();
            plan.script->push_back(*one);
        }
    }
    if (plan.calm_at && !plan.script)
        plan.script.emplace();
    return plan;
}

std::string report(const Shrunk& small, const Runner& run) {
    Plan plan = small.plan;
    plan.keeps_log = true;
    const Outcome again = run(plan);
    const Finding found = again.found.value_or(Finding{"none", "it did not happen again"});
    std::string text = found.rule + ": " + found.text + "\n\nThe node:\n" +
                       policies::effective_yaml(World(plan).shape().documents) +
                       "\nThe shortest trace (" + std::to_string(small.runs) +
                       " runs; berth simulate --replay FILE):\n" + to_text(small.plan) +
                       "\nWhat happened, to the end:\n";
    const size_t skipped =
        again.log.size() > kLogLinesShown ? again.log.size() - kLogLinesShown : 0;
    for (size_t n = skipped; n < again.log.size(); ++n)
        text += again.log[n] + "\n";
    return text;
}

} // namespace berth::simulate
