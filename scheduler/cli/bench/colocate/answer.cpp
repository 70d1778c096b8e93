// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/answer.h"

#include "base/json.h"
#include "scheduler/cli/admin_client.h"

namespace berth::cli::bench {

namespace {

constexpr double kMs = 1e3;

} // namespace

std::optional<double> Answer::first_token_ms() const {
    if (!done || event_s.empty())
        return std::nullopt;
    return (event_s.front() - due_s) * kMs;
}

std::optional<double> Answer::per_token_ms() const {
    if (!done || event_s.empty() || tokens < 2)
        return std::nullopt;
    return (event_s.back() - event_s.front()) * kMs / static_cast<double>(tokens - 1);
}

std::vector<double> Answer::gaps_ms() const {
    std::vector<double> gaps;
    for (size_t n = 1; done && n < full_s.size(); ++n)
        gaps.push_back((full_s[n] - full_s[n - 1]) * kMs);
    return gaps;
}

void AnswerReader::take(std::string_view piece, double at_s) {
    rest_ += piece;
    size_t begin = 0;
    for (size_t end = 0; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
        std::string_view line = std::string_view(rest_).substr(begin, end - begin);
        if (line.ends_with('\r'))
            line.remove_suffix(1);
        constexpr std::string_view kData = "data: ";
        if (line.starts_with(kData))
            take_event(line.substr(kData.size()), at_s);
    }
    rest_.erase(0, begin);
}

void AnswerReader::take_event(std::string_view data, double at_s) {
    if (data == "[DONE]") {
        answer_->done = answer_->error.empty();
        return;
    }
    const auto parsed = json::parse(data, "an event of the answer");
    if (!parsed || !parsed->is_object()) {
        answer_->error = parsed ? "an event of the answer is no object" : parsed.error().message;
        return;
    }
    const json::object& event = parsed->get_object();
    if (const auto* error = event.if_contains("error"); error != nullptr && error->is_object()) {
        answer_->error = text_at(error->get_object(), "message");
        return;
    }
    if (const auto* usage = event.if_contains("usage"); usage != nullptr && usage->is_object())
        answer_->tokens = number_at(usage->get_object(), "completion_tokens");
    const auto* choices = event.if_contains("choices");
    if (choices == nullptr || !choices->is_array() || choices->get_array().empty() ||
        !choices->get_array().front().is_object())
        return;
    const std::string text = text_at(choices->get_array().front().get_object(), "text");
    answer_->event_s.push_back(at_s);
    if (!text.empty())
        answer_->full_s.push_back(at_s);
    answer_->text += text;
}

} // namespace berth::cli::bench
