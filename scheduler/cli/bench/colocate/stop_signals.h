// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace berth::cli::bench {

// While it lives, SIGINT and SIGTERM are taken as the wish to stop: what was measured is still
// written and the node taken down. A second one ends the program as ever. One at a time.
class StopSignals {
  public:
    StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;
    ~StopSignals();

    static bool asked(); // any thread

  private:
    struct sigaction interrupt_before_{};
    struct sigaction terminate_before_{};
};

} // namespace berth::cli::bench
