// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace berth {

// Users and groups as this system's databases know them. A look-up may block (a directory on the
// network): answers are kept for kKeptFor, the negative ones too, so that nobody who calls often
// makes it often. Not thread-safe: one owner each.
class SystemNames {
  public:
    static constexpr std::chrono::seconds kKeptFor{60};
    static constexpr size_t kKeptMax = 1'024;

    // A number stands for itself; nothing for a name that is not known.
    std::optional<uint32_t> uid_of(const std::string& user);
    std::optional<uint32_t> gid_of(const std::string& group);
    // Empty when it has none.
    std::string user_name(uint32_t uid);
    // Whether the databases (not the kernel) say that the user is in that group.
    bool is_listed(uint32_t uid, const std::string& group);
    void forget();

  private:
    template <typename Value>
    struct Kept {
        Value value;
        std::chrono::steady_clock::time_point at;
    };
    template <typename Key, typename Value>
    using Cache = std::map<Key, Kept<Value>>;

    Cache<std::string, std::optional<uint32_t>> uids_;
    Cache<std::string, std::optional<uint32_t>> gids_;
    Cache<uint32_t, std::string> names_;
};

} // namespace berth
