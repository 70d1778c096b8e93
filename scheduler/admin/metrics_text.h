// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/node_context.h"

#include <string>

namespace berth {

// GET /metrics: Prometheus text, version 0.0.4.
std::string metrics_text(const NodeContext& context, const std::string& version);

} // namespace berth
