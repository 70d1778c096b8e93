// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/calibrate.h"

#include "scheduler/cli/bench/colocate/open_loop.h"
#include "scheduler/cli/bench/figures.h"

#include <algorithm>

namespace berth::cli::bench {

namespace {

constexpr uint32_t kShortPrompt = 32, kLongPrompt = 1024;
constexpr uint32_t kTokens = 32;
constexpr size_t kRounds = 5, kAtOnce = 8;
constexpr uint32_t kRowsMax = 16;
// Numbers of requests that no phase uses, so that no phase asks again what was asked here.
constexpr size_t kFirstNumber = 1'000'000;

struct Pace {
    double first_s = 0;     // to the first token
    double per_token_s = 0; // after it
};

// The medians of `count` equal requests.
Result<Pace> ask(const Endpoint& online, const Asked& asked, const Arrival& shape, size_t count,
                 bool one_by_one, size_t& number) {
    LoopPlan plan;
    plan.online = online;
    plan.one_by_one = one_by_one;
    for (size_t n = 0; n < count; ++n) {
        plan.requests.push_back(completion_request(asked, kFirstNumber + number++, shape));
        plan.due_s.push_back(0);
    }
    BERTH_ASSIGN(const LoopOutcome outcome, run_loop(std::move(plan)));
    std::vector<double> first, later;
    for (const Answer& answer : outcome.answers) {
        if (!answer.done)
            return fail(ErrorCode::kFailedPrecondition,
                        "the online engine does not answer while it is alone: " + answer.error,
                        "OnlineFailed");
        first.push_back(answer.first_token_ms().value_or(0) / 1e3);
        later.push_back(answer.per_token_ms().value_or(0) / 1e3);
    }
    return Pace{percentile(first, 50), percentile(later, 50)};
}

} // namespace

Status warm_up(const Endpoint& online, const Asked& asked, uint32_t context_tokens_max) {
    const uint32_t prompt = std::min(kLongPrompt, context_tokens_max / 2);
    size_t number = kFirstNumber * 2;
    for (int time = 0; time < 2; ++time) {
        LoopPlan plan;
        plan.online = online;
        for (uint32_t row = 0; row < kRowsMax; ++row) {
            const Arrival shape{0, prompt / (row + 1) + 1,
                                std::min(kTokens + 2 * row, context_tokens_max / 4)};
            plan.requests.push_back(completion_request(asked, number++, shape));
            plan.due_s.push_back(0);
        }
        BERTH_ASSIGN(const LoopOutcome outcome, run_loop(std::move(plan)));
        for (const Answer& answer : outcome.answers)
            if (!answer.done)
                return fail(ErrorCode::kFailedPrecondition,
                            "the online engine does not answer: " + answer.error, "OnlineFailed");
    }
    return {};
}

Result<EnginePace> measure_pace(const Endpoint& online, const Asked& asked,
                                uint32_t context_tokens_max) {
    const uint32_t half = context_tokens_max / 2;
    const uint32_t short_prompt = std::min(kShortPrompt, half / 4 + 1);
    const uint32_t long_prompt = std::max(std::min(kLongPrompt, half), short_prompt + 1);
    const uint32_t tokens = std::clamp<uint32_t>(half / 4, 2, kTokens);
    size_t number = 0;
    BERTH_ASSIGN(const Pace of_short,
                 ask(online, asked, {0, short_prompt, 1}, kRounds, true, number));
    BERTH_ASSIGN(const Pace of_long,
                 ask(online, asked, {0, long_prompt, 1}, kRounds, true, number));
    BERTH_ASSIGN(const Pace one, ask(online, asked, {0, short_prompt, tokens}, 3, true, number));
    BERTH_ASSIGN(const Pace many,
                 ask(online, asked, {0, short_prompt, tokens}, kAtOnce, false, number));
    EnginePace pace;
    pace.prompt_token_s =
        std::max(0.0, (of_long.first_s - of_short.first_s) / (long_prompt - short_prompt));
    pace.prompt_s = std::max(0.0, of_short.first_s - pace.prompt_token_s * short_prompt);
    pace.step_s = one.per_token_s;
    pace.row_s = std::max(0.0, (many.per_token_s - one.per_token_s) / (kAtOnce - 1));
    return pace;
}

} // namespace berth::cli::bench
