// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace berth::engine {

// Engines share the node's cores, so threads that wait for each other must sleep, not spin: with as
// many threads as cores and a busy neighbour the default was seen to cost a factor of ten. The
// OpenMP library reads GOMP_SPINCOUNT once, before main; where neither it nor OMP_WAIT_POLICY is
// set this starts the program anew (same process) with it. Returns when there is nothing to do. To
// be called before anything else; whoever starts engines saves the second start by setting it.
void restart_with_sleeping_threads(char** argv);

} // namespace berth::engine
