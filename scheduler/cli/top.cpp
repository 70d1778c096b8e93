// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/top_view.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

namespace berth::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kDecisionsShown = 8;
constexpr uint64_t kEventsShown = 12;
constexpr size_t kTextWidth = 120; // where there is no terminal
constexpr size_t kTextHeight = 1'000;

std::string time_of_day() {
    return utc_text(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                              std::chrono::system_clock::now().time_since_epoch())
                                              .count()))
        .substr(11, 8);
}

// Looks at the node and remembers what rates need.
class Watcher {
  public:
    explicit Watcher(const AdminClient& client) : client_(client) {}

    Status look() {
        auto node = client_.get("/v1/node");
        if (!node)
            return fail(node.error());
        if (!node->is_object())
            return fail(ErrorCode::kCorrupt, "berthd's reply about the node is no object");
        const Clock::time_point now = Clock::now();
        picture_.rates =
            picture_.node.empty()
                ? std::map<std::string, TopPicture::Rates>()
                : rates_between(picture_.node, node->get_object(),
                                std::chrono::duration<double>(now - looked_at_).count());
        looked_at_ = now;
        picture_.node = std::move(node->get_object());
        if (auto decisions = client_.get(fmt::format("/v1/decisions?limit={}", kDecisionsShown)))
            if (auto items = items_of(*decisions))
                picture_.decisions = std::move(*items);
        look_at_events();
        return {};
    }
    TopPicture& picture() { return picture_; }
    Clock::time_point looked_at() const { return looked_at_; }

  private:
    void look_at_events() {
        const uint64_t newest = number_at(picture_.node, "revision");
        const uint64_t first = newest > kEventsShown ? newest - kEventsShown : 0;
        std::deque<json::value> events;
        (void)client_.lines(fmt::format("/v1/events?since={}", first),
                            [&events](std::string_view line) {
                                if (auto event = json::parse(line, "an event");
                                    !line.empty() && event && event->is_object())
                                    events.push_back(std::move(*event));
                                if (events.size() > kEventsShown)
                                    events.pop_front();
                                return true;
                            });
        picture_.events = json::array(events.begin(), events.end());
    }

    const AdminClient& client_;
    TopPicture picture_;
    Clock::time_point looked_at_;
};

// The terminal as it was found, given back whatever happens: the other screen, the cursor and the
// keyboard's settings. Signals that would end the program, and changes of size, come as descriptor.
class Terminal {
  public:
    Terminal() {
        sigset_t wanted;
        ::sigemptyset(&wanted);
        for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH})
            ::sigaddset(&wanted, number);
        ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
        signals_ = UniqueFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
        if (::tcgetattr(STDIN_FILENO, &settings_) == 0) {
            termios raw = settings_;
            raw.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO));
            raw.c_cc[VMIN] = 0;
            raw.c_cc[VTIME] = 0;
            raw.c_cc[VSUSP] = _POSIX_VDISABLE; // a stopped program would leave the screen behind
            has_keys_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
        }
        print("\x1b[?1049h\x1b[?25l\x1b[?7l"); // its own screen, no cursor, no wrapping
    }
    Terminal(const Terminal&) = delete;
    Terminal& operator=(const Terminal&) = delete;
    ~Terminal() {
        print("\x1b[?7h\x1b[?25h\x1b[?1049l");
        if (has_keys_)
            (void)::tcsetattr(STDIN_FILENO, TCSANOW, &settings_);
        (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

    TopScreen screen() const {
        TopScreen screen;
        winsize size{};
        if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
            screen.width = size.ws_col;
            screen.height = size.ws_row;
        }
        screen.colour = may_colour(STDOUT_FILENO);
        screen.keys = has_keys_;
        return screen;
    }

    // One write: nothing is cleared before it is written over, so nothing flickers.
    void draw(const std::vector<std::string>& lines) {
        std::string frame = "\x1b[?2026h\x1b[H";
        for (size_t n = 0; n < lines.size(); ++n)
            frame += (n > 0 ? "\r\n" : "") + lines[n] + "\x1b[K";
        print(frame + "\x1b[J\x1b[?2026l");
    }

    enum class Heard { kNothing, kResized, kEnd };
    Heard wait_until(Clock::time_point end) {
        std::array<pollfd, 2> waits{{{signals_.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
        const nfds_t count = has_keys_ ? 2 : 1;
        if (::poll(waits.data(), count, static_cast<int>(std::max<int64_t>(left, 0))) <= 0)
            return Heard::kNothing;
        signalfd_siginfo signal{};
        if (::read(signals_.get(), &signal, sizeof signal) == sizeof signal)
            return signal.ssi_signo == SIGWINCH ? Heard::kResized : Heard::kEnd;
        if (waits[1].revents == 0)
            return Heard::kNothing;
        char key = 0;
        const ssize_t got = ::read(STDIN_FILENO, &key, 1);
        if (got <= 0) { // the keyboard is gone
            has_keys_ = got < 0 && (errno == EAGAIN || errno == EINTR);
            return has_keys_ ? Heard::kNothing : Heard::kEnd;
        }
        return key == 'q' || key == 'Q' ? Heard::kEnd : Heard::kResized; // any other: draw again
    }

  private:
    UniqueFd signals_;
    sigset_t before_{};
    termios settings_{};
    bool has_keys_ = false;
};

Status one_frame(const Session& session) {
    Watcher watcher(session.client);
    BERTH_TRY(watcher.look());
    const TopPicture& picture = watcher.picture();
    if (session.format != Format::kTable) {
        const json::object all{
            {"node", picture.node}, {"decisions", picture.decisions}, {"events", picture.events}};
        print(session.format == Format::kJson ? pretty_json(all) : yaml_text(all));
        return {};
    }
    watcher.picture().time = time_of_day();
    TopScreen screen{kTextWidth, kTextHeight, false, false};
    if (const char* columns = std::getenv("COLUMNS"); columns != nullptr)
        if (const long given = std::strtol(columns, nullptr, 10); given >= 40 && given <= 1'000)
            screen.width = static_cast<size_t>(given);
    for (const std::string& line : top_lines(picture, screen))
        print(line + "\n");
    return {};
}

} // namespace

Status top(const Session& session, const TopOptions& options) {
    if (options.once || session.format != Format::kTable || !is_terminal(STDOUT_FILENO))
        return one_frame(session);
    Watcher watcher(session.client);
    BERTH_TRY(watcher.look());
    Terminal terminal;
    for (Clock::time_point next = Clock::now();;) {
        watcher.picture().time = time_of_day();
        terminal.draw(top_lines(watcher.picture(), terminal.screen()));
        next = std::max(next + options.interval, Clock::now());
        Terminal::Heard heard = Terminal::Heard::kNothing;
        while (heard == Terminal::Heard::kNothing && Clock::now() < next)
            heard = terminal.wait_until(next);
        if (heard == Terminal::Heard::kEnd)
            return {};
        if (heard == Terminal::Heard::kResized)
            continue;
        auto seen = watcher.look();
        const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() -
                                                                               watcher.looked_at());
        watcher.picture().trouble =
            seen ? ""
                 : fmt::format("no answer for {} ({})",
                               age_text(static_cast<uint64_t>(age.count())), seen.error().reason);
    }
}

} // namespace berth::cli
