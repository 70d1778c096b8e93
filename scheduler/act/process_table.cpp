// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/process_table.h"

#include "base/log.h"
#include "base/units.h"
#include "scheduler/act/confirm.h"
#include "scheduler/act/mps_control.h"
#include "scheduler/act/proc.h"

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <poll.h>
#include <sys/wait.h>

namespace berth {

namespace {

constexpr std::chrono::milliseconds kLookFirst{5};
constexpr std::chrono::milliseconds kLookMax{1000};
constexpr uint64_t kLooksToNudge = 3;
constexpr int kNudgeMs = 2;
// What SIGKILL ends is gone within this time, or worth a word.
constexpr std::chrono::milliseconds kLingering{100};
constexpr const char* kMpsPipes = "CUDA_MPS_PIPE_DIRECTORY";
constexpr size_t kEnvironmentBytesMax = size_t{4} << 20;

// The wait status of a child, which stays a zombie.
int peek_status(int pid) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | WNOHANG) != 0 ||
        info.si_pid != pid)
        return 0;
    return info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
}

void add_known(std::vector<ProcessId>& known, const std::vector<TreeMember>& members) {
    for (const ProcessId& id : ids_of(members))
        if (std::find(known.begin(), known.end(), id) == known.end())
            known.push_back(id);
}

void signal_all(const std::vector<TreeMember>& members, int number) {
    for (const TreeMember& one : members)
        if (auto sent = signal_process(one.id, number); !sent)
            log::debug("signal {} to pid={}: {}, ignoring", number, one.id.pid,
                       sent.error().message);
}

std::string held_on_gpus(const ProcessTable::Care& care, const std::vector<ProcessId>& processes) {
    std::string words;
    if (care.nvml == nullptr)
        return words;
    for (const std::string& gpu : care.gpus)
        for (const ProcessId& one : processes) {
            // A number that is another's now is not ours to wait for.
            if (auto now = process_id(one.pid); now && *now != one)
                continue;
            const auto bytes = process_bytes_on_gpu(*care.nvml, gpu, one.pid);
            if (bytes.value_or(0) > 0)
                words += fmt::format("{}{} still counts {} for pid {}, which has ended",
                                     words.empty() ? "" : ", ", gpu, format_bytes(*bytes), one.pid);
        }
    return words;
}

// A process in state D may hold what reading its environment waits for: it is passed over.
std::string mps_pipes_of(const TreeMember& one, const ProcessTable::Care& care) {
    if (!care.mps_pipe_directory.empty())
        return care.mps_pipe_directory;
    const auto its =
        one.state == 'D' ? std::nullopt : proc::environment(one.id.pid, kEnvironmentBytesMax);
    return its ? proc::variable(*its, kMpsPipes).value_or("") : care.mps_unread;
}

} // namespace

ProcessTable::Askers ProcessTable::Askers::real() {
    return {release_mps_clients, berth::held_on_gpus};
}

// Nothing is known of them: they are looked at again.
ProcessTable::Look ProcessTable::Look::of_failure(Error error) {
    Look look;
    look.refused = "its processes could not be looked at: " + error.message;
    return look;
}

void ProcessTable::stop() {
    looker_.stop();
    mps_.stop();
    driver_.stop();
    for (auto& [name, entry] : entries_)
        entry.again.cancel();
}

Result<node::ProcessRef> ProcessTable::start(const node::InstanceName& instance,
                                             const SpawnOptions& options) {
    BERTH_ASSIGN(Process process, Process::spawn(options));
    return watch(instance, std::move(process), true);
}

Status ProcessTable::adopt(const node::InstanceName& instance, const node::ProcessRef& process) {
    BERTH_ASSIGN(Process adopted, Process::adopt({process.pid, process.start_ticks}));
    BERTH_TRY(watch(instance, std::move(adopted), false));
    return {};
}

Status ProcessTable::adopt_rest(const node::InstanceName& instance, const node::ProcessRef& process,
                                const std::string& token_sha256) {
    TreeQuery query{{process.pid, process.start_ticks}, false, {}, token_sha256};
    const std::vector<TreeMember> members = find_tree(query);
    if (members.empty())
        return fail(ErrorCode::kNotFound,
                    fmt::format("process {} and all that it has started have ended", process.pid));
    Entry entry;
    entry.ref = process;
    entry.leader_ended = entry.recovered_rest = true;
    entry.known = ids_of(members);
    entry.ended_at = std::chrono::steady_clock::now();
    Entry& kept = entries_.insert_or_assign(instance, std::move(entry)).first->second;
    // Not before the node knows of it: how it may be ended, the node's state says.
    kept.again.set(context_, std::chrono::milliseconds(0), [this, instance, process] {
        if (Entry* now = find(instance, process))
            sweep(instance, *now);
    });
    return {};
}

Result<node::ProcessRef> ProcessTable::watch(const node::InstanceName& instance, Process process,
                                             bool own_child) {
    Entry entry;
    entry.ref = {process.id().pid, process.id().start_ticks};
    const node::ProcessRef ref = entry.ref;
    BERTH_ASSIGN(entry.watch, FdWatch::open(context_, process.pidfd(), [this, instance, ref] {
                     leader_ended(instance, ref.pid);
                 }));
    entry.process = std::move(process);
    entry.own_child = own_child;
    entries_.insert_or_assign(instance, std::move(entry));
    return ref;
}

ProcessTable::Entry* ProcessTable::find(const node::InstanceName& instance,
                                        const node::ProcessRef& process) {
    auto found = entries_.find(instance);
    return found == entries_.end() || !(found->second.ref == process) ? nullptr : &found->second;
}

TreeQuery ProcessTable::query_of(const Entry& entry, const Care& care) const {
    return TreeQuery{{entry.ref.pid, entry.ref.start_ticks},
                     !entry.recovered_rest,
                     entry.known,
                     care.token_sha256};
}

ProcessTable::Ended ProcessTable::ended_of(const node::InstanceName& instance,
                                           const Entry& entry) const {
    Ended said;
    said.instance = instance;
    said.process = entry.ref;
    // Of another's child only the end is known; an engine that had finished its work has said so.
    said.clean = entry.own_child && WIFEXITED(entry.status) && WEXITSTATUS(entry.status) == 0;
    said.description = entry.own_child ? describe_exit(entry.status) : "ended";
    return said;
}

Status ProcessTable::signal(const node::InstanceName& instance, const node::ProcessRef& process,
                            int number) {
    Entry* entry = find(instance, process);
    if (entry == nullptr)
        return fail(ErrorCode::kNotFound, fmt::format("process {} is no longer instance '{}'s",
                                                      process.pid, instance.value));
    ++entry->asked;
    if (entry->leader_ended) {
        sweep(instance, *entry);
        return {};
    }
    if (number == SIGKILL) {
        kill(instance, *entry);
        return {};
    }
    BERTH_TRY(entry->process.signal_group(number));
    // A stopped process cannot act on SIGTERM.
    if (number == SIGTERM)
        (void)entry->process.signal_group(SIGCONT);
    entry->pause = kLookFirst;
    entry->looks = 0;
    move(instance, *entry, number == SIGTERM ? SIGCONT : number);
    return {};
}

// The group has the signal; those who have left it get it too, and then it is seen what came of it.
void ProcessTable::move(const node::InstanceName& instance, Entry& entry, int number) {
    const bool stops = number == SIGSTOP;
    // Whoever waits for a child that was stopped between vfork and exec cannot stop itself: now and
    // then all go on for a moment.
    const bool nudges = stops && entry.looks++ % kLooksToNudge == kLooksToNudge - 1;
    looker_.run(
        [query = query_of(entry, observer_.care(instance)), number, stops, nudges] {
            Look look;
            look.members = find_tree(query);
            if (nudges) {
                signal_all(look.members, SIGCONT);
                ::poll(nullptr, 0, kNudgeMs);
                look.members = find_tree(query);
            }
            signal_all(look.members, number);
            // Whoever was started meanwhile is found by a second look.
            const std::vector<TreeMember> now = stops ? find_tree(query) : look.members;
            look.still = stops && now.size() <= look.members.size() &&
                         std::all_of(now.begin(), now.end(), [](const TreeMember& one) {
                             return stands_still(one.id.pid);
                         });
            return look;
        },
        [this, instance, ref = entry.ref, asked = entry.asked, number, stops](Look look) {
            Entry* now = find(instance, ref);
            if (now == nullptr)
                return;
            if (look.refused.empty())
                now->known = ids_of(look.members);
            if (now->asked != asked || now->leader_ended)
                return;
            if (!stops || look.still)
                return observer_.moved(instance, ref, stops);
            now->pause = std::min(now->pause, kLookFirst * 2); // there is a deadline
            later(*now, [this, instance, ref, asked, number] {
                if (Entry* again = find(instance, ref);
                    again != nullptr && again->asked == asked && !again->leader_ended)
                    move(instance, *again, number);
            });
        });
}

void ProcessTable::kill(const node::InstanceName& instance, Entry& entry) {
    const Care care = observer_.care(instance);
    if (care.no_mps)
        (void)entry.process.signal_group(SIGKILL);
    const auto told = [this, instance, ref = entry.ref, asked = entry.asked](Look look) {
        Entry* now = find(instance, ref);
        if (now == nullptr)
            return;
        add_known(now->known, look.members);
        if (!look.refused.empty() && now->asked == asked && !now->leader_ended)
            observer_.kill_refused(instance, ref, std::move(look.refused));
    };
    looker_.run([query = query_of(entry, care), care] { return look_and_end(query, care); },
                [this, told](Look look) {
                    if (look.clients.empty())
                        return told(std::move(look));
                    end_clients(std::move(look), told);
                });
}

// Whoever is no client of MPS is ended at once; where there is one, end_clients() ends them all.
ProcessTable::Look ProcessTable::look_and_end(const TreeQuery& query, const Care& care) {
    Look look;
    look.members = find_tree(query);
    if (!care.no_mps)
        for (const TreeMember& one : look.members)
            if (std::string pipes = mps_pipes_of(one, care); !pipes.empty())
                look.clients[std::move(pipes)].push_back(one.id);
    if (look.clients.empty())
        signal_all(look.members, SIGKILL);
    return look;
}

// Before SIGKILL under CUDA MPS: its work ends first. A stopped client would let the daemon wait
// for it (seen on an H200: terminate_client answers once the process runs again), so it runs until
// then. Where that is refused it goes on as if nobody had asked.
void ProcessTable::end_clients(Look look, std::function<void(Look)> then) {
    mps_.run(
        [look = std::move(look), release = askers_.release_mps]() mutable {
            signal_all(look.members, SIGCONT);
            for (const auto& [pipes, clients] : look.clients) {
                std::vector<int> pids; // of those that have not ended meanwhile
                for (const ProcessId& one : clients)
                    if (is_alive(one))
                        pids.push_back(one.pid);
                if (auto released = release(pipes, pids); !released) {
                    look.refused = released.error().message;
                    return std::move(look);
                }
            }
            signal_all(look.members, SIGKILL);
            return std::move(look);
        },
        std::move(then));
}

void ProcessTable::ask_driver(Look look, const Care& care, std::vector<ProcessId> all,
                              std::function<void(Look)> then) {
    driver_.run(
        [look = std::move(look), care, all = std::move(all),
         held_on_gpus = askers_.held_on_gpus]() mutable {
            look.held = held_on_gpus(care, all);
            return std::move(look);
        },
        std::move(then));
}

void ProcessTable::leader_ended(const node::InstanceName& instance, int pid) {
    auto found = entries_.find(instance);
    if (found == entries_.end() || found->second.ref.pid != pid || found->second.leader_ended)
        return;
    Entry& entry = found->second;
    entry.leader_ended = true;
    entry.ended_at = std::chrono::steady_clock::now();
    entry.pause = kLookFirst;
    if (entry.own_child)
        entry.status = peek_status(pid);
    sweep(instance, entry);
}

// Ends what has outlived the leader, again and again until there is nothing.
void ProcessTable::sweep(const node::InstanceName& instance, Entry& entry) {
    entry.again.cancel();
    const Care care = observer_.care(instance);
    std::vector<ProcessId> all = entry.known;
    all.push_back({entry.ref.pid, entry.ref.start_ticks});
    const auto told = [this, instance, ref = entry.ref](Look look) {
        if (Entry* now = find(instance, ref))
            swept(instance, *now, std::move(look));
    };
    looker_.run([query = query_of(entry, care), care] { return look_and_end(query, care); },
                [this, care, all = std::move(all), told](Look look) {
                    if (!look.clients.empty())
                        return end_clients(std::move(look), told);
                    if (look.members.empty() && look.refused.empty() && !care.gpus.empty())
                        return ask_driver(std::move(look), care, all, told);
                    told(std::move(look));
                });
}

void ProcessTable::swept(const node::InstanceName& instance, Entry& entry, Look look) {
    add_known(entry.known, look.members);
    // An adopted leader is not ours to keep as a zombie: from here on its number may be another's.
    entry.recovered_rest = entry.recovered_rest || !entry.own_child;
    if (look.members.empty() && look.held.empty() && look.refused.empty()) {
        Ended said = ended_of(instance, entry);
        (void)entry.process.try_wait(); // now its number may be another's
        entries_.erase(instance);
        observer_.ended(std::move(said));
        return;
    }
    const bool lingers = std::chrono::steady_clock::now() - entry.ended_at >= kLingering;
    if (!entry.told && (lingers || !look.refused.empty())) {
        entry.told = true;
        observer_.leader_ended(ended_of(instance, entry),
                               look.members.empty() ? look.held : words_of(look.members));
        if (!look.refused.empty())
            observer_.kill_refused(instance, entry.ref, look.refused);
    }
    later(entry, [this, instance, ref = entry.ref] {
        if (Entry* now = find(instance, ref))
            sweep(instance, *now);
    });
}

void ProcessTable::later(Entry& entry, std::function<void()> then) {
    entry.pause = std::clamp(entry.pause * 2, kLookFirst, kLookMax);
    entry.again.set(context_, entry.pause, std::move(then));
}

} // namespace berth
