// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which of the bugs of plant.py is on in this test's copy of scheduler/node; 0: none.
namespace berth::node {

extern int planted_bug;
inline bool planted(int bug) {
    return planted_bug == bug;
}

} // namespace berth::node
