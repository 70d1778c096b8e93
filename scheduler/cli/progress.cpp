// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/progress.h"

#include "base/units.h"
#include "scheduler/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <unistd.h>

namespace berth::cli {

namespace {

constexpr std::chrono::seconds kLineEvery{10};
// A rate over less than this says nothing.
constexpr double kRateAfterSeconds = 0.2;

} // namespace

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)), terminal_(is_terminal(STDERR_FILENO)),
      escapes_(may_colour(STDERR_FILENO)) {}

ProgressLine::~ProgressLine() {
    if (!terminal_ || shown_width_ == 0)
        return;
    print_error(escapes_ ? "\r\x1b[K" : "\r" + std::string(shown_width_, ' ') + "\r");
}

std::string ProgressLine::text_of(const LoadProgress& progress) {
    std::string text = fmt::format("{}: {}", what_, progress.phase);
    if (progress.bytes_total == 0)
        return text;
    text += fmt::format(" {} of {} ({}%)", format_bytes(progress.bytes_done),
                        format_bytes(progress.bytes_total),
                        static_cast<uint64_t>(100.0 * static_cast<double>(progress.bytes_done) /
                                              static_cast<double>(progress.bytes_total)));
    double seconds = std::chrono::duration<double>(Clock::now() - phase_began_).count();
    if (seconds < kRateAfterSeconds || progress.bytes_done <= phase_bytes_)
        return text;
    double rate = static_cast<double>(progress.bytes_done - phase_bytes_) / seconds;
    uint64_t left = progress.bytes_total - std::min(progress.bytes_total, progress.bytes_done);
    text += fmt::format(", {}/s, {} left", format_bytes(static_cast<uint64_t>(rate)),
                        milliseconds_text(1e3 * static_cast<double>(left) / rate));
    return text;
}

void ProgressLine::show(const LoadProgress& progress) {
    auto now = Clock::now();
    bool new_phase = progress.phase != phase_;
    if (new_phase) {
        phase_ = progress.phase;
        phase_began_ = now;
        phase_bytes_ = progress.bytes_done;
    }
    if (!terminal_) {
        if (!new_phase && now - last_line_ < kLineEvery)
            return;
        last_line_ = now;
        print_error(text_of(progress) + "\n");
        return;
    }
    std::string text = text_of(progress);
    std::string padding(shown_width_ > text.size() ? shown_width_ - text.size() : 0, ' ');
    print_error(escapes_ ? "\r\x1b[36m" + text + "\x1b[0m\x1b[K" : "\r" + text + padding);
    shown_width_ = text.size();
}

} // namespace berth::cli
