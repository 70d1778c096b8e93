// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/progress.h"

#include "base/units.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::cli {

namespace {

constexpr auto kRateWindow = std::chrono::seconds(3);
constexpr auto kPlainInterval = std::chrono::seconds(5);
constexpr size_t kBarCells = 24;

} // namespace

ProgressLine::ProgressLine(std::FILE* to, bool is_terminal, std::string what)
    : to_(to), is_terminal_(is_terminal), what_(std::move(what)) {}

ProgressLine::~ProgressLine() {
    clear();
}

void ProgressLine::clear() {
    if (std::exchange(drawn_, false)) {
        std::fputs("\r\x1b[K", to_);
        std::fflush(to_);
    }
}

double ProgressLine::bytes_per_second() const {
    if (recent_.size() < 2)
        return 0;
    std::chrono::duration<double> span = recent_.back().at - recent_.front().at;
    auto moved = static_cast<double>(recent_.back().bytes - recent_.front().bytes);
    return span.count() > 0 ? moved / span.count() : 0;
}

void ProgressLine::update(const std::string& phase, uint64_t bytes_done, uint64_t bytes_total,
                          TimePoint now) {
    bool is_new = phase != phase_;
    if (is_new || bytes_done < bytes_done_)
        recent_.clear();
    phase_ = phase;
    bytes_done_ = bytes_done;
    bytes_total_ = bytes_total;
    recent_.push_back({now, bytes_done});
    while (recent_.size() > 2 && now - recent_.front().at > kRateWindow)
        recent_.pop_front();
    if (is_terminal_) {
        std::fputs(("\r" + text() + "\x1b[K").c_str(), to_);
        std::fflush(to_);
        drawn_ = true;
    } else if (is_new || now - written_ >= kPlainInterval) {
        std::fputs((text() + "\n").c_str(), to_);
        std::fflush(to_);
        written_ = now;
    }
}

std::string ProgressLine::text() const {
    std::string line = phase_.empty() ? what_ : fmt::format("{}: {}", what_, phase_);
    if (bytes_total_ == 0)
        return line;
    double share =
        std::min(1.0, static_cast<double>(bytes_done_) / static_cast<double>(bytes_total_));
    if (is_terminal_) {
        auto full = static_cast<size_t>(share * kBarCells);
        line += fmt::format(" [{}{}]", std::string(full, '#'), std::string(kBarCells - full, '.'));
    }
    line += fmt::format(" {:.0f}%, {} of {}", share * 100, format_bytes(bytes_done_),
                        format_bytes(bytes_total_));
    double rate = bytes_per_second();
    if (rate > 0) {
        auto left = static_cast<double>(bytes_total_ - std::min(bytes_done_, bytes_total_)) / rate;
        line +=
            fmt::format(", {}/s, {:.0f} s left", format_bytes(static_cast<uint64_t>(rate)), left);
    }
    return line;
}

} // namespace berth::cli
