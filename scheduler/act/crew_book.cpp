// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/crew_book.h"

#include "base/folder.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/process.h"
#include "scheduler/wire/system_names.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <unistd.h>

namespace berth {

namespace {

namespace fs = std::filesystem;

std::string meeting_places(const NodePaths& paths) {
    return paths.runtime_dir + "/ranks";
}

void remove_folder(const std::string& folder) {
    std::error_code error;
    fs::remove_all(folder, error);
    if (error)
        log::warn("{}: {}, ignoring", folder, error.message());
}

// For the engine's user, who is berthd's own unless berthd is root.
Status make_folder(const std::string& folder, const std::string& user) {
    remove_folder(folder);
    BERTH_TRY(make_directories(folder, 0700));
    if (user.empty())
        return {};
    const auto uid = SystemNames().uid_of(user);
    if (!uid || *uid == ::geteuid())
        return {}; // whether there is such a user is said where it is started
    if (::chown(folder.c_str(), *uid, static_cast<gid_t>(-1)) != 0)
        return fail_errno("giving " + folder + " to user " + user);
    return {};
}

} // namespace

std::string CrewBook::folder_of(const node::InstanceName& instance, uint64_t number) const {
    return fmt::format("{}/{}-{}", meeting_places(context_.paths), instance.value, number);
}

Crew* CrewBook::find(const node::InstanceName& instance) const {
    const auto found = crews_.find(instance);
    return found == crews_.end() ? nullptr : found->second.crew.get();
}

void CrewBook::hear(const node::InstanceName& rank_name, node::Event event) {
    const RankOf of = rank_of(rank_name);
    const auto found = crews_.find(of.instance);
    if (found == crews_.end()) {
        if (of.rank == 0)
            context_.post(std::move(event));
        return; // else a late word of a crew that is over
    }
    const std::shared_ptr<Crew> crew = found->second.crew; // it may end by this
    std::visit(
        [&of](auto& one) {
            if constexpr (requires { one.instance = of.instance; })
                one.instance = of.instance;
        },
        event);
    crew->hear(of.rank, std::move(event));
}

Crew::Hands CrewBook::hands_of(const node::InstanceName& instance) {
    Crew::Hands hands;
    hands.tell = [this](node::Event event) { context_.post(std::move(event)); };
    hands.end = [this, instance](uint32_t rank, const node::ProcessRef& process) {
        end_(rank_name(instance, rank), process);
    };
    hands.renew = [this, instance](uint32_t rank) { renew_(rank_name(instance, rank)); };
    hands.later = [this, instance](Nanoseconds delay, std::function<void()> deed) {
        if (const auto found = crews_.find(instance); found != crews_.end())
            later(found->second.crew, delay, std::move(deed));
    };
    hands.over = [this, instance] { over(instance); };
    hands.log_of = [this, instance](uint32_t rank) {
        return context_.paths.engine_log(rank_name(instance, rank));
    };
    hands.comes_up = [this, instance] {
        const auto& instances = context_.state().instances;
        const auto found = instances.find(instance);
        return found != instances.end() && found->second.desired == node::Desired::kRunning;
    };
    return hands;
}

void CrewBook::later(std::weak_ptr<Crew> crew, Nanoseconds delay, std::function<void()> deed) {
    const uint64_t id = next_alarm_++;
    alarms_[id].set(context_.io, delay, [this, id, crew = std::move(crew), deed = std::move(deed)] {
        alarms_.erase(id);
        if (const auto held = crew.lock())
            deed();
    });
}

// The last word about it may be the first of the next one.
void CrewBook::over(const node::InstanceName& instance) {
    const auto found = crews_.find(instance);
    if (found == crews_.end())
        return;
    remove_folder(found->second.folder);
    crews_.erase(found);
}

Result<std::string> CrewBook::begin(const node::StartProcess& start,
                                    const std::vector<std::string>& token_hashes) {
    Entry entry;
    entry.folder = folder_of(start.instance, start.number);
    BERTH_TRY(make_directories(meeting_places(context_.paths), 0755));
    BERTH_TRY(make_folder(entry.folder, start.spec.engine.user));
    std::string rendezvous = "file://" + entry.folder + "/store";
    entry.crew = std::make_shared<Crew>(start.instance, token_hashes, hands_of(start.instance));
    crews_.insert_or_assign(start.instance, std::move(entry));
    return rendezvous;
}

Crew& CrewBook::adopt(const node::InstanceName& instance, const std::string& token_sha256,
                      const node::ProcessRef& process, const std::vector<node::RankProcess>& others,
                      uint64_t number, const std::vector<uint32_t>& gone) {
    std::vector<std::string> tokens{token_sha256};
    std::vector<node::ProcessRef> processes{process};
    for (const node::RankProcess& one : others) {
        tokens.push_back(one.token_sha256);
        processes.push_back(one.process);
    }
    Entry entry;
    entry.folder = folder_of(instance, number);
    entry.crew = std::make_shared<Crew>(instance, std::move(tokens), hands_of(instance));
    Crew& crew = *entry.crew;
    crews_.insert_or_assign(instance, std::move(entry));
    crew.adopted(processes, gone);
    return crew;
}

void CrewBook::tidy() const {
    std::set<std::string> used;
    for (const auto& [name, entry] : crews_)
        used.insert(entry.folder);
    const auto folders = entries_of(meeting_places(context_.paths));
    if (!folders)
        return; // there was no crew yet, or they are looked at again by the next berthd
    for (const std::string& folder : *folders)
        if (!used.contains(folder))
            remove_folder(folder);
}

} // namespace berth
