// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstddef>
#include <string>
#include <vector>

namespace berth::zygote {

// Where the kernel looks when somebody reads this process's command line and environment in /proc:
// the places it put them at exec. By the environment berthd finds again a process that it had
// started and did not live to write down, so a forked one must show its own.
class OwnWords {
  public:
    // From main's argv and environ as they were at the start. FailedPrecondition when they are not
    // in one piece each.
    static Result<OwnWords> find(char** argv, char** environment);

    // Writes these there instead. ResourceExhausted when they need more room than there was. What
    // had pointed into the old ones is changed with them.
    Status show(const std::vector<std::string>& argv,
                const std::vector<std::string>& environment) const;

  private:
    struct Place {
        char* begin = nullptr;
        size_t bytes = 0;
    };
    static Result<Place> place_of(char** texts);
    static Status fits(const Place& place, const std::vector<std::string>& texts, const char* what);
    static void write(const Place& place, const std::vector<std::string>& texts, int end_option);

    Place argv_;
    Place environment_;
};

} // namespace berth::zygote
