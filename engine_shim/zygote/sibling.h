// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

namespace berth::zygote {

// Forks a process whose parent is this process's parent: who had asked for it is told its end and
// has its exit status, and the one in between may end. 0 in the new process, its pid in this one.
// Only where there is one thread and nothing has registered a handler of forks that matters to what
// the new process does: they are not run. Unsupported where this kernel or this C library does not
// let it be done.
Result<int> fork_sibling();

// The same in a trial: whether it can be done here. To be called before the first one.
Status check_fork_sibling();

} // namespace berth::zygote
