// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/commands.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <optional>

namespace berth::cli {

namespace {

using Clock = std::chrono::steady_clock;

// How long a watch bears a daemon that is away.
constexpr std::chrono::seconds kAwayMax{30};
constexpr std::chrono::milliseconds kLookEvery{100};

std::string event_line(const json::object& event) {
    return fmt::format("{:>8}  {}  {:<7}  {:<24}  {:<20}  {}\n", number_at(event, "revision"),
                       text_at(event, "time"), text_at(event, "kind"), text_at(event, "object"),
                       text_at(event, "reason"), text_at(event, "message"));
}

// Prints events and knows the last one's number, from where a broken watch goes on.
class EventPrinter {
  public:
    EventPrinter(Format format, int64_t since) : format_(format), seen_(since) {}

    bool take(std::string_view line) {
        heard_ = true;
        if (line.empty())
            return true; // the stream is alive
        auto event = json::parse(line, "an event");
        if (!event || !event->is_object()) {
            print_error(fmt::format("ignoring what is no event: {}\n", line));
            return true;
        }
        const auto revision = static_cast<int64_t>(number_at(event->get_object(), "revision"));
        if (revision != 0 && revision <= seen_)
            return true; // printed before
        seen_ = std::max(seen_, revision);
        if (format_ == Format::kJson)
            print(std::string(line) + "\n");
        else if (format_ == Format::kYaml)
            print("---\n" + yaml_text(*event));
        else
            print(event_line(event->get_object()));
        return true;
    }
    int64_t seen() const { return seen_; }
    void forget() { seen_ = 0; }
    // Whether anything has come since it was asked last.
    bool heard() { return std::exchange(heard_, false); }

  private:
    Format format_;
    int64_t seen_;
    bool heard_ = false;
};

} // namespace

Status events(const Session& session, const EventOptions& options) {
    EventPrinter printer(session.format, options.since);
    std::optional<Clock::time_point> away_since;
    for (bool connected = false;;) {
        const std::string target = fmt::format("/v1/events?since={}{}", printer.seen(),
                                               options.follow ? "&follow=true" : "");
        const Status seen = session.client.lines(
            target, [&printer](std::string_view line) { return printer.take(line); });
        if (!options.follow)
            return seen;
        if (printer.heard() || seen) {
            connected = true;
            away_since.reset();
        }
        if (!seen && connected && seen.error().reason == "TooOld") {
            // The records that it watched are gone: what there is now is told from its beginning.
            print_error("berth: " + seen.error().message + "; going on with all that there is\n");
            printer.forget();
            continue;
        }
        const bool is_away = seen || seen.error().code == ErrorCode::kUnavailable ||
                             seen.error().reason == kNotReachable;
        if (!connected || !is_away)
            return seen;
        if (!away_since)
            away_since = Clock::now();
        if (Clock::now() - *away_since > kAwayMax)
            return fail(ErrorCode::kUnavailable,
                        fmt::format("berthd ended the stream of events and has not come back "
                                    "within {} s; the last one was {}",
                                    kAwayMax.count(), printer.seen()),
                        std::string(kNotReachable));
        pause_between_looks(kLookEvery);
    }
}

} // namespace berth::cli
