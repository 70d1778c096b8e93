// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/zygote/own_words.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <sys/prctl.h>

namespace berth::zygote {

Result<OwnWords::Place> OwnWords::place_of(char** texts) {
    Place place{*texts, 0};
    for (char** text = texts; *text != nullptr; ++text) {
        if (*text != place.begin + place.bytes)
            return fail(ErrorCode::kFailedPrecondition,
                        "command line and environment do not lie where the kernel put them");
        place.bytes += std::strlen(*text) + 1;
    }
    return place;
}

Result<OwnWords> OwnWords::find(char** argv, char** environment) {
    OwnWords words;
    BERTH_ASSIGN(words.argv_, place_of(argv));
    BERTH_ASSIGN(words.environment_, place_of(environment));
    return words;
}

Status OwnWords::fits(const Place& place, const std::vector<std::string>& texts, const char* what) {
    size_t bytes = 0;
    for (const std::string& text : texts)
        bytes += text.size() + 1;
    if (bytes > place.bytes)
        return fail(
            ErrorCode::kResourceExhausted,
            fmt::format("{} of {} bytes does not fit the room of {}", what, bytes, place.bytes));
    return {};
}

void OwnWords::write(const Place& place, const std::vector<std::string>& texts, int end_option) {
    char* at = place.begin;
    for (const std::string& text : texts) {
        std::memcpy(at, text.c_str(), text.size() + 1);
        at += text.size() + 1;
    }
    std::memset(at, 0, static_cast<size_t>(place.begin + place.bytes - at));
    // Whoever may says where they end now; else zeros follow them, which readers pass over.
    (void)::prctl(PR_SET_MM, end_option, at, 0, 0);
}

Status OwnWords::show(const std::vector<std::string>& argv,
                      const std::vector<std::string>& environment) const {
    BERTH_TRY(fits(argv_, argv, "a command line"));
    BERTH_TRY(fits(environment_, environment, "an environment"));
    write(argv_, argv, PR_SET_MM_ARG_END);
    write(environment_, environment, PR_SET_MM_ENV_END);
    // Libraries name the program in their messages by these; argv[0] is where it was.
    program_invocation_name = argv_.begin;
    const char* slash = std::strrchr(argv_.begin, '/');
    program_invocation_short_name =
        slash == nullptr ? argv_.begin : argv_.begin + (slash + 1 - argv_.begin);
    return {};
}

} // namespace berth::zygote
