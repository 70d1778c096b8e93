// SPDX-License-Identifier: Apache-2.0
#include "policies/yaml.h"
#include "scheduler/node/rollout_step.h"
#include "scheduler/node/service.h"

// What new documents mean for rollouts: for those under way, and for what one has come to.
namespace berth::node {

using policies::InstanceSpec;

void Step::on(const DocumentRefused& event) {
    Rolling{*this}.refused(event);
}

// Documents that say otherwise than what a rollout began with go before it.
void Step::Rolling::take_up(policies::Documents& documents) {
    for (auto at = step.s_.rollouts.begin(); at != step.s_.rollouts.end();) {
        const InstanceSpec* said = documents.find_instance(at->first.value);
        if (said == nullptr || !said->standby_of.empty()) {
            step.cancel(at->second.retry);
            step.act(ForgetRollout{at->first});
            at = step.s_.rollouts.erase(at);
            continue;
        }
        take_up(at->second, documents, *said);
        ++at;
    }
    lay_rollouts(step.s_.rollouts, documents);
}

void Step::Rolling::take_up(Rollout& r, const policies::Documents& documents,
                            const InstanceSpec& said) {
    const bool had_standby = r.standby.has_value();
    const InstanceSpec* other = standby_of(documents, r.instance.value);
    r.said = said;
    r.standby = other == nullptr ? std::nullopt : std::optional(*other);
    const std::string model = "Model '" + r.after.model + "' ";
    std::string no_more; // why what was rolled out can no longer be
    InstanceSpec after = r.after;
    if (!after.model.empty() && documents.find_model(after.model) == nullptr)
        no_more = model + "is no longer in the documents";
    else if (const Status fits = policies::complete_ranks(after, documents); !fits)
        no_more = fits.error().message;
    const bool other_ranks = no_more.empty() && after.ranks != r.after.ranks;
    if (no_more.empty())
        r.after = std::move(after);
    if (r.phase == RolloutPhase::kComplete && !r.adopted) {
        r.adopted = !(said == r.before) || !no_more.empty();
        step.cancel(r.retry);
        step.act(PersistRollout{r});
        if (!r.adopted)
            step.act(AdoptDocument{r.after});
        return;
    }
    if (!r.is_under_way())
        return;
    std::string why;
    if (!(said == r.before) && !(said == r.after))
        why = "its document was changed meanwhile";
    else if (!no_more.empty())
        why = no_more;
    else if (other_ranks)
        why =
            model + "was changed meanwhile (tensorParallel: " + std::to_string(r.after.ranks) + ")";
    else if (had_standby && other == nullptr)
        why = "its standby is no longer in the documents";
    if (why.empty())
        return;
    if (!(said == r.after))
        r.before = said;
    r.reason = "Superseded";
    r.message = why;
    const Instance* surge = r.surge ? find(surge_name(r.instance)) : nullptr;
    r.surge_stays = r.surge_stays && surge != nullptr && !surge->stands_by && may_act(*surge);
    r.paused = false;
    r.phase = RolloutPhase::kReverting;
    r.since = step.now_;
    tell(r, true, "RolloutFailed", "Superseded: " + why);
    step.act(PersistRollout{r});
}

void Step::Rolling::adopt_again(const InstanceName& name) {
    const auto found = step.s_.rollouts.find(name);
    if (found == step.s_.rollouts.end())
        return;
    found->second.retry.reset();
    if (found->second.phase == RolloutPhase::kComplete && !found->second.adopted)
        step.act(AdoptDocument{found->second.after});
}

void Step::Rolling::refused(const DocumentRefused& event) {
    const auto found = step.s_.rollouts.find(event.instance);
    if (found == step.s_.rollouts.end() || found->second.phase != RolloutPhase::kComplete ||
        found->second.adopted)
        return;
    Rollout& r = found->second;
    const std::string words = "complete, and not kept by the documents yet: " + event.error.message;
    if (r.message != words) {
        r.message = words;
        tell(r, true, "RolloutNotKept", words);
        step.act(PersistRollout{r});
    }
    step.arm(r.retry, Timer{Timer::Kind::kRollout, r.instance, {}}, step.now_ + kAdoptRetryTime);
}

} // namespace berth::node
