// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

// Living under a limit of descriptors (RLIMIT_NOFILE). The kernel gives out the lowest free number,
// so the number of a new descriptor says how many are open at least: it is all that a server has to
// look at to keep the last ones for its own work.
namespace berth {

struct DescriptorLimit {
    uint64_t before = 0; // the soft limit as it was found
    uint64_t soft = 0;   // as it is now
    uint64_t hard = 0;
};
// Raises this process's soft limit to the hard one, where it may.
Result<DescriptorLimit> raise_descriptor_limit();

// Makes the kernel's table of this process's descriptors as large as the soft limit asks for, up to
// 65,536 of them (half a megabyte). Else it grows as they are opened, and each time a process of
// several threads waits for all processors to take notice (synchronize_rcu() in Linux's fs/file.c):
// ten milliseconds in which a server serves nobody. Before other threads are started it costs
// nothing.
void make_descriptor_table();

// The soft limit now.
uint64_t descriptor_limit();

// The same under a number that is higher than those of nearly all else, so that whoever is at the
// other end hears of it first when this process is killed: Linux looks through an ending process's
// descriptors from the lowest number up, puts off what closing them takes, and does what it has put
// off last first (close_files() in fs/file.c, kernel/task_work.c). A driver's files, which hold
// device memory, take it tens of milliseconds meanwhile. Unchanged where the limit of descriptors
// leaves no such number.
UniqueFd to_high_number(UniqueFd fd);

// Who asks for a descriptor, in the order in which they are turned away.
enum class DescriptorUse {
    kNewcomer, // an engine's connection: leaves a quarter of the limit, at most 128
    kOperator, // an admin connection: leaves half as many, so that one can look at a full node
    kOwn,      // a load's start: leaves a quarter as many, for what is under way
};
// Whether a new descriptor with that number leaves fewer than the use must leave.
bool leaves_too_few(int fd, DescriptorUse use);

// ResourceExhausted, TooManyDescriptors: what is refused, the limit, and what to do.
Error too_many_descriptors(std::string_view what);
// Whether a failed call failed for want of descriptors, this process's or the system's.
bool is_descriptor_shortage(const Error& error);

// One descriptor in hand for the moment when there is none left: given up, it lets accept() take
// the newcomer that waits, so that it can be told why it is turned away. Not thread-safe.
class SpareDescriptor {
  public:
    // Empty when there is none to be had.
    void take() noexcept;
    void give_up() noexcept { fd_.reset(); }
    explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

  private:
    UniqueFd fd_;
};

} // namespace berth
