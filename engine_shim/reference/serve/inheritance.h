// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/inherited.h"

namespace berth::serve {

// What berthd passes on to an engine so that its socket outlives it. Without a journal connections
// end with the engine, and their requests; those that wait to be accepted do not.
struct Inheritance {
    UniqueFd listen;
    UniqueFd journal; // empty: requests must not be kept
    UniqueFd parked_in, parked_out;
    Result<std::vector<UniqueFd>> copies() const; // of all that is there
    bool keeps() const { return journal && parked_in && parked_out; }
};

// By name; what has another name is closed. FailedPrecondition without "berth-listen".
Result<Inheritance> inheritance_of(std::vector<InheritedFd> descriptors);

} // namespace berth::serve
