// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// What berthd and its zygote say to each other. The zygote is a program that has its libraries
// loaded and waits; on request it forks one that goes on as the asked-for command, as if it had
// been started by exec. berthd executes it with a SEQPACKET socket as kDaemonSocket.
//
//   zygote -> berthd   "ready", or "unfit WORDS" and its end
//   berthd -> zygote   "start", with descriptors: a socket of this start alone; a memfd with the
//                      request, which the zygote itself never reads: it holds tokens; and those
//                      that the new process inherits, from number 3 up (sd_listen_fds(3))
//   on that socket     "born PID" from the forked process, ready and waiting; berthd answers "go".
//                      "failed PID WORDS" from one that could not become what was asked for, and
//                      ends; "refused WORDS" from the zygote, which must be replaced.
// Whoever waits for "go" and finds the socket closed ends: a start that berthd gave up never runs.
namespace berth::zygote {

inline constexpr std::string_view kFlag = "--zygote";
inline constexpr int kDaemonSocket = 3;
// The forked process shows its words where the kernel looks for them: where those of the zygote
// were. This much room is made for them.
inline constexpr size_t kArgumentRoom = size_t{32} << 10;
inline constexpr size_t kEnvironmentRoom = size_t{96} << 10;
inline constexpr const char* kEnvironmentRoomName = "BERTH_ZYGOTE_ROOM";

// What the kernel allows a process of one kind (setrlimit(2)).
struct Limit {
    int kind = 0; // RLIMIT_NOFILE, ...
    uint64_t soft = 0, hard = 0;
    bool operator==(const Limit&) const = default;
};
// All of this process's own, as whoever it executes has them.
std::vector<Limit> own_limits();

struct Request {
    std::vector<std::string> argv;        // argv[0] is the program
    std::vector<std::string> environment; // "NAME=TEXT", all of it
    std::string working_directory;        // empty: the zygote's
    std::string log_path;                 // stdout and stderr append there; empty: the zygote's
    bool new_session = true;
    std::vector<Limit> limits; // the zygote's may be of another time
};

// No field may hold a NUL, as the kernel's own do not.
std::string encode(const Request& request);
Result<Request> decode(std::string_view bytes); // Corrupt

struct Answer {
    enum class Kind { kBorn, kFailed, kRefused };
    Kind kind = Kind::kRefused;
    int pid = 0; // not of kRefused
    std::string words;
};
std::string encode(const Answer& answer);
Result<Answer> decode_answer(std::string_view text); // Corrupt

// The first word of a zygote: "ready", or this and why.
std::string unfit(std::string_view words);
std::string_view why_unfit(std::string_view message);

// How the zygote is started: its command, and what is added to its environment.
std::vector<std::string> command(const std::string& program, bool with_gpu);
std::string environment_room();

} // namespace berth::zygote
