// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/zygote/request.h"

#include "base/number.h"

#include <fmt/format.h>

#include <sys/resource.h>

namespace berth::zygote {

namespace {

constexpr std::string_view kUnfit = "unfit ";

void add(std::string& bytes, std::string_view text) {
    bytes += text;
    bytes += '\0';
}

// The next text and its NUL are taken from the front.
Result<std::string> next(std::string_view& bytes) {
    const size_t end = bytes.find('\0');
    if (end == std::string_view::npos)
        return fail(ErrorCode::kCorrupt, "a request to the zygote is cut short");
    std::string text(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
    return text;
}

std::string_view word_of(Answer::Kind kind) {
    switch (kind) {
    case Answer::Kind::kBorn:
        return "born";
    case Answer::Kind::kFailed:
        return "failed";
    case Answer::Kind::kRefused:
        break;
    }
    return "refused";
}

std::string_view take_word(std::string_view& text) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
    return word;
}

std::string words_of(const std::vector<Limit>& limits) {
    std::string words;
    for (const Limit& one : limits)
        words += fmt::format("{} {} {} ", one.kind, one.soft, one.hard);
    return words;
}

Result<std::vector<Limit>> limits_of(std::string_view words) {
    std::vector<Limit> limits;
    while (!words.empty()) {
        const auto kind = number_in<int>(take_word(words));
        const auto soft = number_in<uint64_t>(take_word(words));
        const auto hard = number_in<uint64_t>(take_word(words));
        if (!kind || !soft || !hard)
            return fail(ErrorCode::kCorrupt, "a request to the zygote has limits that are none");
        limits.push_back({*kind, *soft, *hard});
    }
    return limits;
}

} // namespace

std::vector<Limit> own_limits() {
    std::vector<Limit> limits;
    for (int kind = 0; kind < RLIM_NLIMITS; ++kind) {
        rlimit now{};
        if (::getrlimit(kind, &now) == 0)
            limits.push_back({kind, now.rlim_cur, now.rlim_max});
    }
    return limits;
}

std::string encode(const Request& request) {
    std::string bytes;
    add(bytes, request.working_directory);
    add(bytes, request.log_path);
    add(bytes, request.new_session ? "1" : "0");
    add(bytes, words_of(request.limits));
    add(bytes, std::to_string(request.argv.size()));
    for (const std::string& text : request.argv)
        add(bytes, text);
    for (const std::string& text : request.environment)
        add(bytes, text);
    return bytes;
}

Result<Request> decode(std::string_view bytes) {
    Request request;
    BERTH_ASSIGN(request.working_directory, next(bytes));
    BERTH_ASSIGN(request.log_path, next(bytes));
    BERTH_ASSIGN(const std::string session, next(bytes));
    BERTH_ASSIGN(const std::string limits, next(bytes));
    BERTH_ASSIGN(request.limits, limits_of(limits));
    BERTH_ASSIGN(const std::string count_text, next(bytes));
    request.new_session = session == "1";
    const auto count = number_in<size_t>(count_text);
    if (!count || *count == 0 || *count > bytes.size())
        return fail(ErrorCode::kCorrupt,
                    fmt::format("a request to the zygote has '{}' arguments", count_text));
    while (request.argv.size() < *count) {
        BERTH_ASSIGN(std::string text, next(bytes));
        request.argv.push_back(std::move(text));
    }
    while (!bytes.empty()) {
        BERTH_ASSIGN(std::string text, next(bytes));
        request.environment.push_back(std::move(text));
    }
    return request;
}

std::string encode(const Answer& answer) {
    if (answer.kind == Answer::Kind::kRefused)
        return fmt::format("{} {}", word_of(answer.kind), answer.words);
    return fmt::format("{} {} {}", word_of(answer.kind), answer.pid, answer.words);
}

Result<Answer> decode_answer(std::string_view text) {
    std::string_view rest = text;
    const std::string_view word = take_word(rest);
    for (const auto kind : {Answer::Kind::kBorn, Answer::Kind::kFailed, Answer::Kind::kRefused}) {
        if (word != word_of(kind))
            continue;
        Answer answer{kind, 0, {}};
        if (kind != Answer::Kind::kRefused) {
            const auto pid = number_in<int>(take_word(rest));
            if (!pid || *pid <= 0)
                break;
            answer.pid = *pid;
        }
        answer.words = rest;
        return answer;
    }
    return fail(ErrorCode::kCorrupt,
                fmt::format("the zygote's answer '{}' is not understood", text.substr(0, 100)));
}

std::string unfit(std::string_view words) {
    return fmt::format("{}{}", kUnfit, words);
}

std::string_view why_unfit(std::string_view message) {
    return message.starts_with(kUnfit) ? message.substr(kUnfit.size()) : message;
}

std::vector<std::string> command(const std::string& program, bool with_gpu) {
    return {program, std::string(kFlag), std::to_string(kDaemonSocket), with_gpu ? "gpu" : "host",
            std::string(kArgumentRoom, '-')};
}

std::string environment_room() {
    return std::string(kEnvironmentRoom, '-');
}

} // namespace berth::zygote
