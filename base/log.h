// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <spdlog/spdlog.h>

#include <string>

// Logging: one line an event, on stderr, with the program's name: grep-able `key=value` pairs after
// the words. Library layers return errors; only a program's top level logs above debug.
namespace berth::log {

// Sets up spdlog's default logger. `level` is trace, debug, info, warn, error or off; an empty one
// is read from BERTH_LOG, else info.
Status start(const std::string& program, const std::string& level = {});

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::trace;
using spdlog::warn;

} // namespace berth::log
