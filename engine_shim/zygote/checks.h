// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <string>

// What must hold of a process before it may be forked and the fork may go on as a program of its
// own. FailedPrecondition says in words what was found.
namespace berth::zygote {

// A second thread would not be in the fork, and what it had locked would stay locked.
Status check_single_task(const std::string& tasks = "/proc/self/task");
// A driver that was started, or whose device is open, is of no use to a fork.
Status check_no_gpu_open(const std::string& descriptors = "/proc/self/fd");

} // namespace berth::zygote
