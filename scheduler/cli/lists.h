// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/output.h"

#include <string>

// The tables of `status` and `get`.
namespace berth::cli {

Table device_table(const json::array& devices);
Table instance_table(const json::array& instances);
Table weights_table(const json::array& weights);
Table operation_table(const json::array& operations);
Table decision_table(const json::array& decisions);
// By the plural of the kind.
Table table_of(const std::string& kind, const json::array& listed);

// "3 of 40", "2 running, 1 waiting", or "".
std::string progress_of(const json::value& instance);

} // namespace berth::cli
