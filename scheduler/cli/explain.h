// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <cstdint>
#include <string>

// berthd's replies in words, for somebody who was woken up. Pure; `now_ms` is the wall clock.
namespace berth::cli {

// One decision: what was weighed, who was taken, who was rejected and why.
std::string decision_text(const json::object& decision, int64_t now_ms);

// Why an instance is where it is, what it waits for and what to do; then the newest decisions about
// it, those in which it was looked at, and its last events.
std::string explanation(const json::object& instance, const json::array& decisions,
                        const json::array& events, int64_t now_ms);

// The answer to a plan.
std::string what_if_text(const json::object& answer, int64_t now_ms);

} // namespace berth::cli
