// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"

#include <string>
#include <vector>

// Which processes an engine is: the one that was started, its group and session, what they have
// started in turn, and whoever carries its token, even if they have changed group and session. All
// of it is read from /proc, which may take milliseconds on a large machine: on a worker. A pid
// alone never stands for a process here: pids are used again.
namespace berth {

struct TreeQuery {
    ProcessId leader;
    // Its number is its own: it lives, is not reaped, or has ended a moment ago. Else the group and
    // the session of that number may be somebody else's, and only the token counts.
    bool group_is_ours = true;
    std::vector<ProcessId> known; // found earlier; they may have left group, session and parent
    std::string token_sha256;     // of BERTH_TOKEN in their environment; empty: not looked for
};
struct TreeMember {
    ProcessId id;
    std::string name;
    char state = '?';
};
// Those that live; zombies do not.
std::vector<TreeMember> find_tree(const TreeQuery& query);
std::vector<ProcessId> ids_of(const std::vector<TreeMember>& members);
// "pid 12 (python3, state D), pid 14 (worker, state R)"
std::string words_of(const std::vector<TreeMember>& members);

// A process and what it has started, by the kernel's lists of children: cheap.
std::vector<int> with_descendants(int pid);

// Whether none of its threads can run: all are stopped, or have ended.
bool stands_still(int pid);

// To that process and no other: NotFound when it has ended, whoever has its pid now.
Status signal_process(const ProcessId& process, int number);

} // namespace berth
