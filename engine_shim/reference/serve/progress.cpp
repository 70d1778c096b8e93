// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/progress.h"

#include "base/units.h"

#include <fmt/format.h>

#include <unistd.h>

#include <cstdio>

namespace berth::serve {
namespace {

constexpr size_t kBarWidth = 30;

void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
}

// "45 s", "3 min", "2.5 h".
std::string rough(double seconds) {
    if (seconds < 90)
        return fmt::format("{:.0f} s", seconds);
    if (seconds < 5400)
        return fmt::format("{:.0f} min", seconds / 60);
    return fmt::format("{:.1f} h", seconds / 3600);
}

} // namespace

Progress::Progress(uint64_t done, uint64_t total)
    : done_before_(done), total_(total), is_terminal_(::isatty(STDERR_FILENO) == 1) {}

std::string Progress::line(uint64_t done, uint64_t tokens, Clock::duration elapsed,
                           bool has_bar) const {
    double seconds = std::chrono::duration<double>(elapsed).count();
    double share = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
    double rate = seconds > 0 ? static_cast<double>(done - done_before_) / seconds : 0;
    std::string out;
    if (has_bar) {
        auto filled = static_cast<size_t>(share * static_cast<double>(kBarWidth));
        out = "[" + std::string(filled, '#') + std::string(kBarWidth - filled, ' ') + "] ";
    }
    out += fmt::format("{}/{} {:.0f}% {:.1f} requests/s {:.0f} tokens/s", done, total_, 100 * share,
                       rate, seconds > 0 ? static_cast<double>(tokens) / seconds : 0);
    if (done < total_ && rate > 0)
        out += fmt::format(" {} left", rough(static_cast<double>(total_ - done) / rate));
    return out;
}

void Progress::update(uint64_t done, uint64_t tokens) {
    Clock::time_point now = Clock::now();
    if (now < next_)
        return;
    next_ = now + (is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10));
    std::string text = line(done, tokens, now - begin_, is_terminal_);
    print(is_terminal_ ? "\r\x1b[K" + text : "batch " + text + "\n");
}

void Progress::finish(uint64_t done, uint64_t tokens) {
    std::string text = line(done, tokens, Clock::now() - begin_, is_terminal_);
    print(is_terminal_ ? "\r\x1b[K" + text + "\n" : "batch " + text + "\n");
}

} // namespace berth::serve
