// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/cycles/answers.h"

#include "base/number.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/bench/colocate/dice.h"
#include "scheduler/cli/bench/own_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

namespace berth::cli::bench {

namespace {

constexpr uint64_t kPromptMax = 400; // bytes

const json::object* object_at(const json::object& in, std::string_view name) {
    const json::value* found = in.if_contains(name);
    return found != nullptr && found->is_object() ? &found->get_object() : nullptr;
}

} // namespace

std::vector<std::string> make_prompts(const CyclesOptions& options) {
    Dice dice(options.seed * 104'729 + 7);
    std::vector<std::string> prompts;
    for (size_t n = 0; n < options.prompts; ++n) {
        std::string text = fmt::format("Line {}:", n);
        for (uint64_t left = dice.below(kPromptMax); left > 8; left -= 8)
            text += fmt::format(" {:07x}", dice.below(0xfffffff));
        prompts.push_back(std::move(text));
    }
    return prompts;
}

json::object ask_for(const std::string& prompt, uint32_t tokens) {
    return {{"model", "model"},
            {"prompt", prompt},
            {"max_tokens", tokens},
            {"temperature", 0},
            {"ignore_eos", true}};
}

Result<std::string> text_of(const json::value& reply) {
    const json::value* choices =
        reply.is_object() ? reply.get_object().if_contains("choices") : nullptr;
    if (choices == nullptr || !choices->is_array() || choices->get_array().empty() ||
        !choices->get_array().front().is_object())
        return fail(ErrorCode::kCorrupt,
                    fmt::format("no completion: {:.200}", json::serialize(reply)));
    return text_at(choices->get_array().front().get_object(), "text");
}

Status write_lines(const std::string& file, const std::vector<std::string>& prompts,
                   uint32_t tokens, size_t lines) {
    std::vector<std::string> bodies;
    for (const std::string& prompt : prompts)
        bodies.push_back(json::serialize(ask_for(prompt, tokens)));
    std::string text;
    for (size_t n = 0; n < lines; ++n)
        text +=
            fmt::format(R"({{"custom_id":"l{}","method":"POST","url":"/v1/completions","body":{}}})"
                        "\n",
                        n, bodies[n % bodies.size()]);
    return write_text(file, text);
}

Result<LinesCheck> check_lines(const std::string& file, const std::vector<std::string>& expected,
                               uint64_t whole) {
    std::ifstream input(file, std::ios::binary);
    if (!input)
        return fail_errno("reading " + file);
    LinesCheck check;
    std::set<uint64_t> seen;
    const auto wrong = [&check](uint64_t& count, std::string words) {
        if (++count == 1 && check.first_wrong.empty())
            check.first_wrong = std::move(words);
    };
    std::string text;
    for (uint64_t at = 1; std::getline(input, text) && !input.eof(); ++at) {
        const auto parsed = json::parse(text, file);
        const std::string id =
            parsed && parsed->is_object() ? text_at(parsed->get_object(), "custom_id") : "";
        const auto line = id.starts_with('l') ? number_in<uint64_t>(std::string_view(id).substr(1))
                                              : std::nullopt;
        if (!line)
            return fail(
                ErrorCode::kCorrupt,
                fmt::format("{}:{}: no answer to a line that was asked: {:.200}", file, at, text));
        if (!seen.insert(*line).second) {
            wrong(check.twice, fmt::format("line {} is answered twice", *line));
            continue;
        }
        ++check.answered;
        check.highest = std::max(check.highest, *line);
        const json::object* response = object_at(parsed->get_object(), "response");
        const json::object* body = response == nullptr ? nullptr : object_at(*response, "body");
        const auto answer = body == nullptr ? Result<std::string>(fail(ErrorCode::kCorrupt, "none"))
                                            : text_of(*body);
        const std::string& right = expected[*line % expected.size()];
        if (!answer)
            wrong(check.failed, fmt::format("line {} failed: {:.300}", *line, text));
        else if (*answer != right)
            wrong(check.different, fmt::format("line {} is answered '{:.80}', undisturbed '{:.80}'",
                                               *line, *answer, right));
    }
    for (uint64_t line = 0; line < whole; ++line)
        if (!seen.contains(line))
            wrong(check.lost, fmt::format("line {} has no answer", line));
    return check;
}

} // namespace berth::cli::bench
