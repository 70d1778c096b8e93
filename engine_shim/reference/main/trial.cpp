// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/trial.h"

namespace berth::engine {

Result<std::optional<std::vector<int32_t>>> try_alone(StepModel& model, Scheduler& of,
                                                      const SchedulerLimits& limits,
                                                      std::vector<int32_t> prompt, uint32_t count,
                                                      const LayerHook& hook) {
    GenerationRequest request;
    request.id = "trial";
    request.prompt = std::move(prompt);
    request.max_new_tokens = count;
    request.temperature = 0;
    request.ignore_eos = true;
    Scheduler trial(limits, {});
    trial.allocator().resize(of.allocator().total());
    std::vector<int32_t> tokens;
    trial.add(std::move(request), [&tokens](const TokenEvent& event) {
        if (event.token >= 0)
            tokens.push_back(event.token);
    });
    while (!trial.idle()) {
        BERTH_ASSIGN(const Scheduler::Outcome outcome, trial.step(model, hook));
        if (outcome != Scheduler::Outcome::kStepped)
            return std::nullopt;
    }
    return std::optional(std::move(tokens));
}

} // namespace berth::engine
