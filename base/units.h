// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

// Bytes and durations as people write them in policies and on the command line.
namespace berth {

using Nanoseconds = std::chrono::nanoseconds;

// "24Gi", "512Mi", "64Ki", "1Ti", "10G" (powers of 1000), "4096", "0". Fractions are allowed with a
// unit ("1.5Gi"). Refuses negative, empty, unknown units and overflow.
Result<uint64_t> parse_bytes(std::string_view text);
// "24.0 GiB"; exact bytes below 1 KiB.
std::string format_bytes(uint64_t bytes);
// The shortest exact form that parse_bytes reads back: "24Gi", "1537".
std::string format_bytes_exact(uint64_t bytes);

// "200ms", "1s", "10m", "2h", "1h30m", "500us", "100ns". "0" needs no unit.
Result<Nanoseconds> parse_duration(std::string_view text);
// "12.3 ms", "1.25 s", "430 µs".
std::string format_duration(Nanoseconds duration);
// The shortest exact form that parse_duration reads back.
std::string format_duration_exact(Nanoseconds duration);

// "30%" -> 0.30. Refuses values outside 0..100.
Result<double> parse_percentage(std::string_view text);

} // namespace berth
