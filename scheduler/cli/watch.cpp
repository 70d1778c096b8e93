// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/command.h"

#include <fmt/format.h>

// `berth events` and `berth doctor`.
namespace berth::cli {

namespace {

constexpr std::chrono::milliseconds kSilenceMax{60'000}; // berthd sends an empty line every 15 s

void print_event(const Output& output, const json::value& event) {
    if (output.format == Format::kJson)
        std::fputs((json::serialize(event) + "\n").c_str(), stdout);
    else if (output.format == Format::kYaml)
        std::fputs(("---\n" + to_yaml(event)).c_str(), stdout);
    else
        std::fputs(fmt::format("{:>6}  {:<24}  {:<8}  {:<28}  {:<20}  {}\n",
                               text(event, "revision"), text(event, "time"), text(event, "kind"),
                               text(event, "object"), text(event, "reason"), text(event, "message"))
                       .c_str(),
                   stdout);
    std::fflush(stdout);
}

} // namespace

Status show_events(const Context& context, uint64_t since, bool follow) {
    std::optional<Error> broken;
    auto on_line = [&](std::string_view line) {
        if (line.empty())
            return true;
        auto event = json::parse(line, "an event");
        if (!event) {
            broken = event.error();
            return false;
        }
        print_event(context.output, *event);
        return true;
    };
    std::string target = fmt::format("/v1/events?since={}{}", since, follow ? "&follow=true" : "");
    BERTH_TRY(context.client.lines(target, kSilenceMax, on_line));
    if (broken)
        return fail(*broken);
    if (follow)
        return fail(ErrorCode::kUnavailable, "berthd has ended the watch",
                    std::string(kUnreachable));
    return {};
}

Status run_doctor(const Context& context) {
    BERTH_ASSIGN(json::value found, context.client.get("/v1/doctor"));
    const json::value* listed = field(found, "checks");
    size_t bad = 0;
    size_t count = 0;
    if (!context.output.is_table())
        context.output.print(found);
    if (listed != nullptr && listed->is_array())
        for (const json::value& check : listed->get_array()) {
            bool ok = flag(check, "ok");
            ++count;
            bad += ok ? 0 : 1;
            if (!context.output.is_table())
                continue;
            std::string mark = paint(ok ? "ok  " : "BAD ", ok ? Colour::kGood : Colour::kBad,
                                     context.output.colour);
            std::fputs(
                fmt::format("{} {:<14} {}\n", mark, text(check, "name"), text(check, "message"))
                    .c_str(),
                stdout);
            if (!ok && !text(check, "remedy").empty())
                std::fputs(fmt::format("{:19} do: {}\n", "", text(check, "remedy")).c_str(),
                           stdout);
        }
    if (bad > 0)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("{} of {} checks are not well", bad, count), "ChecksFailed");
    return {};
}

} // namespace berth::cli
