// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/batch_work.h"

#include "base/json.h"
#include "base/number.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/bench/colocate/dice.h"
#include "scheduler/cli/bench/own_node.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <optional>
#include <set>

namespace berth::cli::bench {

namespace {

constexpr uint64_t kTokensLeast = 96, kTokensSpread = 160;

// "l1234" -> the number of its prompt.
std::optional<size_t> prompt_of(const std::string& id) {
    if (!id.starts_with('l'))
        return std::nullopt;
    const auto line = number_in<size_t>(std::string_view(id).substr(1));
    return line ? std::optional(*line % kBatchPrompts) : std::nullopt;
}

// The text that was generated; nothing where the request failed.
std::optional<std::string> text_of(const json::object& line) {
    const auto* response = line.if_contains("response");
    if (response == nullptr || !response->is_object() ||
        number_at(response->get_object(), "status_code") != 200)
        return std::nullopt;
    const auto* body = response->get_object().if_contains("body");
    const auto* choices =
        body != nullptr && body->is_object() ? body->get_object().if_contains("choices") : nullptr;
    if (choices == nullptr || !choices->is_array() || choices->get_array().empty() ||
        !choices->get_array().front().is_object())
        return std::nullopt;
    const json::object& choice = choices->get_array().front().get_object();
    if (const auto* message = choice.if_contains("message");
        message != nullptr && message->is_object())
        return text_at(message->get_object(), "content");
    return text_at(choice, "text");
}

} // namespace

Status write_batch(const std::string& file, size_t lines, uint64_t seed) {
    std::string text;
    for (size_t n = 0; n < lines; ++n) {
        const size_t prompt = n % kBatchPrompts;
        Dice dice(seed * 7'919 + prompt);
        json::object body{{"model", "model"},
                          {"prompt", fmt::format("Task {} of many: {}", prompt,
                                                 std::string(dice.below(96), 'x'))},
                          {"max_tokens", kTokensLeast + dice.below(kTokensSpread)},
                          {"temperature", 0},
                          {"ignore_eos", true}};
        text += json::serialize(json::object{{"custom_id", fmt::format("l{}", n)},
                                             {"method", "POST"},
                                             {"url", "/v1/completions"},
                                             {"body", std::move(body)}});
        text += '\n';
    }
    return write_text(file, text);
}

Result<BatchAnswers> check_batch(const std::string& file) {
    std::ifstream input(file, std::ios::binary);
    if (!input)
        return fail_errno("reading " + file);
    BatchAnswers found;
    std::set<std::string> seen;
    std::map<size_t, std::string> first; // by prompt
    std::string text;
    while (std::getline(input, text)) {
        if (input.eof())
            break; // it is still being written
        const auto parsed = json::parse(text, file);
        if (!parsed || !parsed->is_object())
            return fail(ErrorCode::kCorrupt,
                        fmt::format("{}:{}: a line that is no answer", file, found.lines + 1));
        ++found.lines;
        const std::string id = text_at(parsed->get_object(), "custom_id");
        found.twice += seen.insert(id).second ? 0 : 1;
        const auto answer = text_of(parsed->get_object());
        found.failed += answer ? 0 : 1;
        if (const auto prompt = prompt_of(id); prompt && answer) {
            const auto [known, is_first] = first.emplace(*prompt, *answer);
            found.different += !is_first && known->second != *answer ? 1 : 0;
        }
    }
    return found;
}

} // namespace berth::cli::bench
