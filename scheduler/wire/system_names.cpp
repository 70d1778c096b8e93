// SPDX-License-Identifier: Apache-2.0
#include "scheduler/wire/system_names.h"

#include "base/number.h"

#include <grp.h>
#include <pwd.h>
#include <vector>

namespace berth {

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kBufferBytes = size_t{64} << 10; // of a group with many members

// UINT32_MAX is nobody's.
std::optional<uint32_t> id_in(const std::string& text) {
    const auto number = number_in<uint32_t>(text);
    return number == UINT32_MAX ? std::nullopt : number;
}

template <typename Cache, typename Key, typename Ask>
auto kept(Cache& cache, const Key& key, const Ask& ask) {
    auto now = Clock::now();
    if (auto found = cache.find(key);
        found != cache.end() && now - found->second.at < SystemNames::kKeptFor)
        return found->second.value;
    if (cache.size() >= SystemNames::kKeptMax)
        cache.clear();
    auto value = ask();
    cache[key] = {value, now};
    return value;
}

} // namespace

std::optional<uint32_t> SystemNames::uid_of(const std::string& user) {
    if (auto number = id_in(user))
        return number;
    return kept(uids_, user, [&]() -> std::optional<uint32_t> {
        passwd entry{};
        passwd* found = nullptr;
        std::vector<char> buffer(kBufferBytes);
        if (::getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
            found == nullptr)
            return std::nullopt;
        return found->pw_uid;
    });
}

std::optional<uint32_t> SystemNames::gid_of(const std::string& name) {
    if (auto number = id_in(name))
        return number;
    return kept(gids_, name, [&]() -> std::optional<uint32_t> {
        group entry{};
        group* found = nullptr;
        std::vector<char> buffer(kBufferBytes);
        if (::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
            found == nullptr)
            return std::nullopt;
        return found->gr_gid;
    });
}

std::string SystemNames::user_name(uint32_t uid) {
    return kept(names_, uid, [&]() -> std::string {
        passwd entry{};
        passwd* found = nullptr;
        std::vector<char> buffer(kBufferBytes);
        if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 ||
            found == nullptr)
            return {};
        return found->pw_name;
    });
}

bool SystemNames::is_listed(uint32_t uid, const std::string& name) {
    std::string user = user_name(uid);
    group entry{};
    group* found = nullptr;
    std::vector<char> buffer(kBufferBytes);
    if (user.empty() ||
        ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
        found == nullptr)
        return false;
    for (char** member = found->gr_mem; *member != nullptr; ++member)
        if (user == *member)
            return true;
    return false;
}

void SystemNames::forget() {
    uids_.clear();
    gids_.clear();
    names_.clear();
}

} // namespace berth
