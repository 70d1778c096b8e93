// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/main/options.h"

namespace berth {

// The program, once its command line is read: check, load for oneself, or load for berthd. Returns
// the exit code: 0 done, 1 failed (the cause is on stderr and, if there is one, at berthd).
int run_loader(LoaderOptions options);

} // namespace berth
