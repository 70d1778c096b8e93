// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace berth::cli {

// A pause between two looks at what tells nobody when it changes (a daemon that is coming back, a
// counter). Signals may end it early.
void pause_between_looks(std::chrono::microseconds duration);

} // namespace berth::cli
