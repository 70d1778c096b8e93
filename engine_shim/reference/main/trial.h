// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/scheduler.h"

#include <optional>
#include <vector>

namespace berth::engine {

// `count` greedy tokens after a prompt, that nobody asked for, by a scheduler of their own in the
// blocks of `of`, which is idle. Nothing where `hook` has abandoned a step, or where the blocks are
// too few.
Result<std::optional<std::vector<int32_t>>> try_alone(StepModel& model, Scheduler& of,
                                                      const SchedulerLimits& limits,
                                                      std::vector<int32_t> prompt, uint32_t count,
                                                      const LayerHook& hook);

} // namespace berth::engine
