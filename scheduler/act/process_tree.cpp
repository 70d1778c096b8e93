// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/process_tree.h"

#include "base/number.h"
#include "base/unique_fd.h"
#include "scheduler/act/proc.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <sys/syscall.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr size_t kStatBytesMax = 4096;
constexpr size_t kEnvironmentBytesMax = size_t{2} << 20;
constexpr int kKernelThreads = 2; // pid of their parent

struct Stat {
    ProcessId id;
    std::string name;
    char state = '?';
    int parent = 0;
    int group = 0;
    int session = 0;
    bool lives() const { return state != 'Z' && state != 'X'; }
};

// "12 (a name) S 1 12 12 0 ...": the name may hold spaces and brackets.
std::optional<Stat> stat_of(const std::string& path) {
    auto text = read_file(path, kStatBytesMax);
    if (!text)
        return std::nullopt;
    const size_t open = text->find('('), close = text->rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 2 >= text->size())
        return std::nullopt;
    Stat stat;
    stat.id.pid = number_in<int>(std::string_view(*text).substr(0, open - 1)).value_or(0);
    stat.name = text->substr(open + 1, close - open - 1);
    std::string_view rest = std::string_view(*text).substr(close + 2);
    stat.state = rest.front();
    for (int field = 3; field <= 22 && !rest.empty(); ++field) {
        const std::string_view word = rest.substr(0, rest.find_first_of(" \n"));
        if (field == 4)
            stat.parent = number_in<int>(word).value_or(0);
        else if (field == 5)
            stat.group = number_in<int>(word).value_or(0);
        else if (field == 6)
            stat.session = number_in<int>(word).value_or(0);
        else if (field == 22)
            std::from_chars(word.data(), word.data() + word.size(), stat.id.start_ticks);
        rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    }
    return stat;
}

std::map<int, Stat> all_processes() {
    std::map<int, Stat> all;
    const int self = ::getpid();
    for (int pid : proc::numbers_in("/proc"))
        if (pid != self && pid != 1)
            if (auto stat = stat_of(fmt::format("/proc/{}/stat", pid));
                stat && stat->lives() && stat->parent != kKernelThreads)
                all.emplace(pid, std::move(*stat));
    return all;
}

// A process in state D may hold what reading its environment waits for: it is passed over.
bool has_token(const Stat& stat, const std::string& token_sha256) {
    return stat.state != 'D' && proc::has_token(stat.id.pid, token_sha256, kEnvironmentBytesMax);
}

} // namespace

std::vector<TreeMember> find_tree(const TreeQuery& query) {
    const std::map<int, Stat> all = all_processes();
    const ProcessId& leader = query.leader;
    std::set<int> members;
    for (const auto& [pid, stat] : all) {
        const bool known =
            std::find(query.known.begin(), query.known.end(), stat.id) != query.known.end();
        const bool later = stat.id.start_ticks >= leader.start_ticks;
        const bool of_group = query.group_is_ours && later &&
                              (stat.group == leader.pid || stat.session == leader.pid);
        if (stat.id == leader || known || of_group ||
            (later && has_token(stat, query.token_sha256)))
            members.insert(pid);
    }
    for (bool grew = true; grew;) {
        grew = false;
        for (const auto& [pid, stat] : all)
            if (members.contains(stat.parent) && members.insert(pid).second)
                grew = true;
    }
    std::vector<TreeMember> found;
    for (int pid : members)
        found.push_back({all.at(pid).id, all.at(pid).name, all.at(pid).state});
    return found;
}

std::vector<ProcessId> ids_of(const std::vector<TreeMember>& members) {
    std::vector<ProcessId> ids;
    for (const TreeMember& one : members)
        ids.push_back(one.id);
    return ids;
}

std::string words_of(const std::vector<TreeMember>& members) {
    static constexpr size_t kNamedMax = 8;
    std::string words;
    for (size_t n = 0; n < std::min(members.size(), kNamedMax); ++n)
        words += fmt::format("{}pid {} ({}, state {})", n == 0 ? "" : ", ", members[n].id.pid,
                             members[n].name, members[n].state);
    if (members.size() > kNamedMax)
        words += fmt::format(" and {} more", members.size() - kNamedMax);
    return words;
}

std::vector<int> with_descendants(int pid) {
    std::vector<int> all{pid};
    for (size_t n = 0; n < all.size(); ++n)
        for (int thread : proc::numbers_in(fmt::format("/proc/{}/task", all[n]))) {
            auto text = read_file(fmt::format("/proc/{}/task/{}/children", all[n], thread),
                                  size_t{1} << 20);
            if (!text)
                continue;
            std::string_view rest = *text;
            while (!rest.empty()) {
                const std::string_view word = rest.substr(0, rest.find_first_of(" \n"));
                if (auto child = number_in<int>(word);
                    child && std::find(all.begin(), all.end(), *child) == all.end())
                    all.push_back(*child);
                rest.remove_prefix(std::min(rest.size(), word.size() + 1));
            }
        }
    return all;
}

bool stands_still(int pid) {
    for (int thread : proc::numbers_in(fmt::format("/proc/{}/task", pid))) {
        auto stat = stat_of(fmt::format("/proc/{}/task/{}/stat", pid, thread));
        if (stat && stat->lives() && stat->state != 'T' && stat->state != 't')
            return false;
    }
    return true;
}

Status signal_process(const ProcessId& process, int number) {
    // The descriptor names one process for good; its start says whether it is the right one.
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
    if (!pidfd)
        return fail_errno(fmt::format("pidfd of process {}", process.pid));
    BERTH_ASSIGN(ProcessId now, process_id(process.pid));
    if (now != process)
        return fail(ErrorCode::kNotFound,
                    fmt::format("process {} has ended; its pid is another's now", process.pid));
    if (::syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0) != 0)
        return fail_errno(fmt::format("signalling process {}", process.pid));
    return {};
}

} // namespace berth
