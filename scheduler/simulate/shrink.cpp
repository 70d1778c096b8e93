// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/trace.h"

#include <algorithm>

// Making a failing run small. Since every draw depends on what it is about alone, what is left out
// leaves the rest as it was, up to what followed from it; so plain bisection finds what matters.
namespace berth::simulate {

namespace {

class Shrinker {
  public:
    Shrinker(const Plan& failing, const Outcome& outcome, const Runner& run, uint64_t runs_max)
        : run_(run), runs_max_(runs_max), rule_(outcome.found->rule) {
        best_.plan = spelled_out(failing, outcome);
        best_.plan.keeps_log = false;
        best_.outcome = outcome;
    }

    Shrunk run() {
        if (!keep_if_failing(best_.plan)) // it only fails as drawn: that is what there is to show
            return best_;
        for (size_t before = SIZE_MAX; best_.plan.script->size() < before && may_run();) {
            before = best_.plan.script->size();
            drop_stimuli();
            drop_instances();
        }
        end_earlier();
        withhold_faults();
        drop_stimuli();
        return best_;
    }

  private:
    bool may_run() const { return best_.runs < runs_max_; }

    bool keep_if_failing(const Plan& plan) {
        if (!may_run())
            return false;
        ++best_.runs;
        Outcome outcome = run_(plan);
        if (!outcome.found || outcome.found->rule != rule_)
            return false;
        best_.plan = plan;
        best_.plan.script = outcome.script; // what came after the end never happened
        best_.outcome = std::move(outcome);
        return true;
    }

    void drop_stimuli() {
        size_t chunk = std::max<size_t>(1, best_.plan.script->size() / 2);
        while (may_run()) {
            for (size_t at = 0; at < best_.plan.script->size() && may_run();) {
                Plan plan = best_.plan;
                auto& script = *plan.script;
                const size_t end = std::min(at + chunk, script.size());
                script.erase(script.begin() + static_cast<long>(at),
                             script.begin() + static_cast<long>(end));
                if (!keep_if_failing(plan))
                    at += chunk;
            }
            if (chunk == 1)
                return;
            chunk /= 2;
        }
    }

    void drop_instances() {
        const Shape shape = draw_shape(best_.plan.seed, best_.plan.without, best_.plan.limits);
        std::vector<std::string> names;
        for (const policies::InstanceSpec& spec : shape.documents.instances)
            names.push_back(spec.name);
        for (size_t chunk = std::max<size_t>(1, names.size() / 2);; chunk /= 2) {
            for (size_t at = 0; at < names.size() && may_run(); at += chunk) {
                Plan plan = best_.plan;
                for (size_t n = at; n < std::min(at + chunk, names.size()); ++n)
                    plan.without.insert(names[n]);
                keep_if_failing(plan);
            }
            if (chunk <= 1)
                return;
        }
    }

    // Faults may cease as soon as the last thing has been done.
    void end_earlier() {
        const auto& script = *best_.plan.script;
        Plan plan = best_.plan;
        for (const Nanoseconds more : {std::chrono::seconds(0), std::chrono::seconds(30)}) {
            plan.calm_at = (script.empty() ? Nanoseconds(0) : script.back().at) + more;
            if (*plan.calm_at < *best_.plan.calm_at && keep_if_failing(plan))
                return;
        }
    }

    void withhold_faults() {
        const std::set<std::string> faults = best_.outcome.faults;
        Plan none = best_.plan;
        none.withheld.insert(faults.begin(), faults.end());
        if (keep_if_failing(none))
            return;
        for (const std::string& fault : faults) {
            Plan plan = best_.plan;
            plan.withheld.insert(fault);
            keep_if_failing(plan);
        }
    }

    const Runner& run_;
    const uint64_t runs_max_;
    const std::string rule_;
    Shrunk best_;
};

} // namespace

Shrunk shrink(const Plan& failing, const Outcome& outcome, const Runner& run, uint64_t runs_max) {
    return Shrinker(failing, outcome, run, runs_max).run();
}

} // namespace berth::simulate
