// SPDX-License-Identifier: Apache-2.0
// A client's stream while the engine that answers it is killed: until its next token comes, on the
// same connection, from another process.
#include "base/process.h"
#include "scheduler/cli/bench/bench.h"
#include "scheduler/cli/bench/colocate/engine_text.h"
#include "scheduler/cli/bench/engine_calls.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <random>

namespace berth::cli::bench {

namespace {

constexpr int kRounds = 10;
constexpr std::chrono::seconds kAnswerMax{120};
// The kill comes when so many events have been read, drawn up to a third of the answer.
constexpr uint32_t kFirstKill = 2;
// Answers that were read whole before their kill could come; another is asked for.
constexpr int kMissesMax = 5;

struct Kills {
    std::vector<double> stood;       // from the kill to the next token
    std::vector<double> first_token; // of the same requests, undisturbed
    int made = 0, missed = 0;
    int whole = 0, equal = 0;
    std::string first_fault; // of an answer that was not whole, or another one than undisturbed
};

// What the dead one had sent may be read after its end was ordered and is not the next token: the
// longest pause after the kill ends with that.
std::optional<double> stood_ms(const Answer& answer, double killed_s) {
    double last = killed_s;
    double longest = 0;
    std::optional<double> stood;
    for (const double at : answer.full_s) {
        if (at <= killed_s)
            continue;
        if (at - last > longest) {
            longest = at - last;
            stood = (at - killed_s) * 1e3;
        }
        last = at;
    }
    return stood;
}

// Why the answer is not what was asked for; empty if it is.
std::string fault_of(const Answer& answer, uint32_t tokens) {
    if (!answer.done)
        return answer.error;
    if (answer.tokens != tokens)
        return fmt::format("{} tokens instead of {}", answer.tokens, tokens);
    return {};
}

class Failover {
  public:
    Failover(const Options& options, Service service, std::string model)
        : options_(&options), service_(std::move(service)) {
        asked_.model = std::move(model);
    }

    Status run();
    Status report() const;

  private:
    Status one_round();
    void judge(const Answer& answer, const Answer& undisturbed, double killed_s);

    const Options* options_;
    Service service_;
    Asked asked_;
    Kills kills_;
    std::mt19937 moments_; // by its own seed: the same in each run
    int killed_ = 0;       // the last one's pid
};

Status Failover::run() {
    while (kills_.made < options_->rounds_or(kRounds))
        BERTH_TRY(one_round());
    return {};
}

Status Failover::one_round() {
    BERTH_ASSIGN(const json::object active, service_.whole(killed_));
    BERTH_ASSIGN(const Endpoint to, endpoint_from(text_at(active, "endpoint")));
    const auto pid = static_cast<int>(number_at(active, "pid"));
    BERTH_ASSIGN(const ProcessId id, process_id(pid));
    BERTH_ASSIGN(const Process victim, Process::adopt(id));

    // A prompt of its own, which no engine has kept blocks of.
    const uint32_t tokens = options_->answer_tokens;
    const auto number = static_cast<size_t>(kills_.made + kills_.missed);
    const std::string request = completion_request(
        asked_, number, Arrival{.prompt_tokens = options_->context_tokens, .tokens = tokens});
    const Answer undisturbed = stream_answer(to, request, Clock::now(), kAnswerMax, {});
    if (const std::string fault = fault_of(undisturbed, tokens); !fault.empty())
        return fail(ErrorCode::kUnavailable,
                    fmt::format("the service '{}' did not answer, before any kill: {}",
                                service_.name(), fault));
    const size_t at = std::uniform_int_distribution<uint32_t>(
        kFirstKill, std::max(kFirstKill, tokens / 3))(moments_);
    std::optional<double> killed_s;
    Status signalled;
    const auto began = Clock::now();
    const Answer answer = stream_answer(to, request, began, kAnswerMax, [&](const Answer& so_far) {
        if (killed_s || so_far.full_s.size() < at || so_far.done)
            return;
        killed_s = milliseconds_since(began) / 1e3;
        signalled = victim.signal(SIGKILL);
    });
    BERTH_TRY(std::move(signalled));
    if (!killed_s) {
        if (++kills_.missed <= kMissesMax)
            return {};
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("answers of {} tokens are read whole before there is a moment for "
                                "the kill; ask for more --tokens",
                                tokens),
                    "TooShort");
    }
    killed_ = pid;
    kills_.made += 1;
    judge(answer, undisturbed, *killed_s);
    return {};
}

void Failover::judge(const Answer& answer, const Answer& undisturbed, double killed_s) {
    std::string fault = fault_of(answer, options_->answer_tokens);
    const std::optional<double> stood = stood_ms(answer, killed_s);
    if (fault.empty() && stood) {
        kills_.whole += 1;
        kills_.stood.push_back(*stood);
        kills_.first_token.push_back(undisturbed.full_s.front() * 1e3);
        if (answer.text == undisturbed.text)
            kills_.equal += 1;
        else if (options_->exact)
            fault =
                fmt::format("another text, '{}' instead of '{}'", answer.text, undisturbed.text);
    } else if (fault.empty()) {
        fault = "no text came after the kill";
    }
    if (kills_.first_fault.empty() && !fault.empty())
        kills_.first_fault = fmt::format("after kill {}: {}", kills_.made, fault);
}

Status Failover::report() const {
    const int rounds = options_->rounds_or(kRounds);
    print_figures(
        {{"failover", "token", kills_.stood, kills_.first_token,
          "the first token of the same requests, undisturbed, in this run: the prompt's own time",
          "SIGKILL of the engine that answers until the client has the next token of the same "
          "stream on the same connection: noticing, fencing, handing over, computing the prompt "
          "and what had come again",
          json::object{{"instance", service_.name()},
                       {"standbys", service_.standbys()},
                       {"contextTokens", options_->context_tokens},
                       {"answerTokens", options_->answer_tokens},
                       {"kills", rounds},
                       {"answersWhole", kills_.whole},
                       {"textsEqual", kills_.equal}}}},
        options_->json);
    if (kills_.first_fault.empty())
        return {};
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("{} of {} answers were whole, {} had the undisturbed text; {}",
                            kills_.whole, rounds, kills_.equal, kills_.first_fault),
                "AnswerLost");
}

} // namespace

Status failover(const AdminClient& client, const Options& options) {
    BERTH_ASSIGN(Service service, Service::find(client, options.instance));
    BERTH_ASSIGN(const json::object active, service.whole(0));
    BERTH_ASSIGN(std::string model, served_model(active));
    Failover bench(options, std::move(service), std::move(model));
    BERTH_TRY(bench.run());
    return bench.report();
}

} // namespace berth::cli::bench
