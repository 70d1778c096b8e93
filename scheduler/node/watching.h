// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/step.h"

// Inside scheduler/node/ only: whether an engine that answers a socket, or stands by for it, still
// runs. Two things tell: how long its step under way has taken, as it says itself, and whether it
// says anything at all. A frozen one says nothing.
namespace berth::node {

struct Step::Watching {
    Step& step;

    void begin(Instance& i); // it has connected, or was found again
    void heard(Instance& i, uint32_t rank);
    void look(Instance& i); // its timer has fired
    void at_step(Instance& i);

  private:
    const Instance* successor(const Instance& i) const;
    void look_again(Instance& i, TimePoint at);
    void end(Instance& i, const Instance* next, std::string reason, std::string message);
};

} // namespace berth::node
