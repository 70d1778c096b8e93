// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <string>
#include <string_view>
#include <vector>

// Descriptors that whoever started this process left open for it, by the convention of service
// managers: LISTEN_FDS says how many there are, from number 3 up, LISTEN_PID for which process they
// are meant, and LISTEN_FDNAMES, separated by colons, what each is called.
namespace berth {

struct InheritedFd {
    std::string name; // "unknown" where none was given
    UniqueFd fd;
};

// What LISTEN_FDNAMES calls them, in order.
std::vector<std::string> listen_names(std::string_view text);

// Whether LISTEN_FDS is there and meant for this process.
bool inherits_descriptors();

// Takes them, once: they become close-on-exec and the variables are removed, so that a child does
// not take them for its own. None is no error. InvalidArgument for variables that cannot be read;
// FailedPrecondition for a number that is not open. Before other threads read the environment.
Result<std::vector<InheritedFd>> take_inherited_descriptors();

} // namespace berth
