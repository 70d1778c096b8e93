// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace berth {

// What identifies a process for good: its pid and when it started (clock ticks since boot), since
// pids are used again.
struct ProcessId {
    int pid = 0;
    uint64_t start_ticks = 0;
    bool operator==(const ProcessId&) const = default;
};

// The identity of a live process; NotFound when there is none, or only a zombie.
Result<ProcessId> process_id(int pid);
bool is_alive(const ProcessId& process);
// It has ended, or the kernel is ending it: its first thread runs none of its code any more.
bool is_ending(const ProcessId& process);

// The wait status of a child whose end is known but not how (somebody else reaped it): no success,
// and no status that the kernel gives.
inline constexpr int kUnknownWaitStatus = -1;

struct SpawnOptions {
    std::vector<std::string> command;               // argv; command[0] is a path, or found in PATH
    std::map<std::string, std::string> environment; // added to (and over) this process's own
    std::string working_directory;                  // empty: this process's own
    std::string log_path;    // stdout and stderr append there; empty: inherited
    bool new_session = true; // a process group (and session) of its own
    // SIGKILL to it when the thread that starts it ends, however that ends: nothing of the work is
    // of use to anybody else.
    bool ends_with_parent = false;
    std::vector<std::pair<int, int>> inherit_fds; // {descriptor here, number there}, from 3 up
    // {name, descriptor here}, at 3, 4, ... there, told by LISTEN_FDS, LISTEN_FDNAMES and
    // LISTEN_PID (sd_listen_fds(3)). Not together with inherit_fds.
    std::vector<std::pair<std::string, int>> listen_fds{};
};

inline constexpr int kListenFdsStart = 3;
inline constexpr const char* kListenPid = "LISTEN_PID=";

// The environment that such a process has, "NAME=TEXT" each. LISTEN_PID is left open: spaces, which
// the process itself replaces by write_listen_pid(), as nobody else knows its pid before it is
// there.
std::vector<std::string> environment_of(const SpawnOptions& options);

// Into the entry of `environment`'s that begins with kListenPid, if there is one. Allocates
// nothing.
void write_listen_pid(char* const* environment, int pid);

// A started process. Dropping it neither ends nor waits for the process; its end can be awaited by
// polling pidfd() for reading. Not thread-safe.
class Process {
  public:
    Process() = default;
    static Result<Process> spawn(const SpawnOptions& options);
    // Somebody else's child, or one that an earlier daemon started.
    static Result<Process> adopt(const ProcessId& id);
    // A child of this process that another made (CLONE_PARENT). NotFound: it is none.
    static Result<Process> take_child(int pid);

    ProcessId id() const { return id_; }
    int pidfd() const { return pidfd_.get(); }
    explicit operator bool() const { return static_cast<bool>(pidfd_); }

    // Signals the process alone, or its whole process group.
    Status signal(int number) const;
    Status signal_group(int number) const;
    // The wait status once it has ended (own children only; of others ended is known, the status is
    // not and reads 0), nullopt while it runs. Reaps.
    std::optional<int> try_wait();

  private:
    ProcessId id_;
    UniqueFd pidfd_;
    bool is_child_ = false;
};

// "exit code 3", "killed by SIGKILL", "ended, it is not known how".
std::string describe_exit(int wait_status);

// The folder this program lies in.
std::string program_directory();

} // namespace berth
