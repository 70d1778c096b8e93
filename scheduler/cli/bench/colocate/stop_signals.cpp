// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/stop_signals.h"

#include <atomic>

namespace berth::cli::bench {

namespace {

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

void ask_to_stop(int) {
    stop_asked.store(true);
}

} // namespace

StopSignals::StopSignals() {
    stop_asked.store(false);
    struct sigaction action{};
    action.sa_handler = ask_to_stop;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    ::sigaction(SIGINT, &action, &interrupt_before_);
    ::sigaction(SIGTERM, &action, &terminate_before_);
}

StopSignals::~StopSignals() {
    ::sigaction(SIGINT, &interrupt_before_, nullptr);
    ::sigaction(SIGTERM, &terminate_before_, nullptr);
}

bool StopSignals::asked() {
    return stop_asked.load();
}

} // namespace berth::cli::bench
