// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"

#include <cstddef>

// Times and counts that no policy sets.
namespace berth::node {

inline constexpr Nanoseconds kReconfirmInterval = std::chrono::milliseconds(20);
inline constexpr Nanoseconds kReconnectTime = std::chrono::seconds(10);
inline constexpr Nanoseconds kKilledTime = std::chrono::seconds(5);
inline constexpr Nanoseconds kDyingTime = std::chrono::seconds(30); // ends by itself, and is there
inline constexpr Nanoseconds kEndTime = std::chrono::seconds(10);   // from Succeeded to the exit
inline constexpr Nanoseconds kLoadStallTime = std::chrono::seconds(120);
inline constexpr Nanoseconds kProgressEventInterval = std::chrono::seconds(5);
inline constexpr Nanoseconds kCopyRetryTime = std::chrono::seconds(30); // doubled each time,
inline constexpr int kCopyRetryDoublings = 5;                           // so often at most
inline constexpr Nanoseconds kDropRetryTime = std::chrono::seconds(2);
inline constexpr Nanoseconds kRoomRetryTime = std::chrono::seconds(5);
inline constexpr Nanoseconds kRefusalTold = std::chrono::seconds(1);
inline constexpr Nanoseconds kGrowRetryTime = std::chrono::seconds(5);
inline constexpr Nanoseconds kResizeRetryTime = std::chrono::seconds(60); // after a rung failed
inline constexpr Nanoseconds kBackOffFirst = std::chrono::milliseconds(500);
inline constexpr Nanoseconds kBackOffMax = std::chrono::seconds(30);
inline constexpr Nanoseconds kCrashWindow = std::chrono::minutes(10);
inline constexpr size_t kCrashesMax = 5;
inline constexpr Nanoseconds kSteadyTime = std::chrono::seconds(2); // of a service: no loop
// One that begins to answer does what is in flight first: the device and its driver, which still
// takes an ended process apart, are asked for nothing else meanwhile. At first for no larger grant,
// then for no standby. On an H200 the next token came after 90 ms with all at once, after 68 so
// (docs/benchmarks.md).
inline constexpr Nanoseconds kFirstAnswersTime = std::chrono::milliseconds(250);
inline constexpr Nanoseconds kStandbyAfterTime = std::chrono::milliseconds(500);
// For requests that one which hands over has to finish itself.
inline constexpr Nanoseconds kHandOverTime = std::chrono::seconds(30);
// And to leave what is left, once that is over.
inline constexpr Nanoseconds kLeavingTime = std::chrono::seconds(2);
inline constexpr Nanoseconds kListenRetryTime = std::chrono::seconds(2);
inline constexpr uint32_t kQuickEndsMax = 4; // in a row, each soon after the one before
inline constexpr Nanoseconds kAdoptRetryTime = std::chrono::seconds(5);

} // namespace berth::node
