// SPDX-License-Identifier: Apache-2.0
#include "cache/keep/systemd_store.h"

#include "base/log.h"
#include "cache/keep/keeper_store.h"

#include <fmt/format.h>

#include <charconv>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr size_t kNameBytesMax = 255;
constexpr std::string_view kPlain =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./@";

// Everything that a name may not hold, and '%' itself, as %XX.
std::string escaped(std::string_view key) {
    std::string out;
    for (char c : key) {
        if (kPlain.find(c) != std::string_view::npos)
            out += c;
        else
            out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    return out;
}

bool unescape(std::string_view text, std::string& out) {
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            out += text[i];
            continue;
        }
        unsigned byte = 0;
        const char* digits = text.data() + i + 1;
        if (i + 2 >= text.size() || std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2)
            return false;
        out += static_cast<char>(byte);
        i += 2;
    }
    return true;
}

Result<UniqueFd> sealed_memfd(const std::string& text) {
    UniqueFd fd(::memfd_create("berth-meta", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd)
        return fail_errno("memfd_create");
    size_t done = 0;
    while (done < text.size()) {
        ssize_t wrote = ::write(fd.get(), text.data() + done, text.size() - done);
        if (wrote < 0)
            return fail_errno("writing an entry's meta");
        done += static_cast<size_t>(wrote);
    }
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) !=
        0)
        return fail_errno("sealing an entry's meta");
    return fd;
}

Result<std::string> content_of(int fd) {
    struct stat about{};
    if (::fstat(fd, &about) != 0)
        return fail_errno("an entry's meta");
    auto bytes = static_cast<size_t>(about.st_size);
    if (!S_ISREG(about.st_mode) || bytes > kKeeperMetaBytesMax)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("its meta is no file of at most {} bytes", kKeeperMetaBytesMax));
    std::string text(bytes, '\0');
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = ::pread(fd, text.data() + done, bytes - done, static_cast<off_t>(done));
        if (got < 0)
            return fail_errno("reading an entry's meta");
        if (got == 0)
            return fail(ErrorCode::kCorrupt, "its meta ends early");
        done += static_cast<size_t>(got);
    }
    return text;
}

} // namespace

Result<std::string> SystemdStore::name_of(const Name& name) {
    std::string text = fmt::format("{}-of-{}.{}", name.number, name.count, escaped(name.key));
    if (text.size() > kNameBytesMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the key '{}' makes a name of {} bytes; the service manager takes "
                                "{}",
                                name.key, text.size(), kNameBytesMax));
    return text;
}

bool SystemdStore::parse_name(std::string_view text, Name& name) {
    const char* end = text.data() + text.size();
    auto number = std::from_chars(text.data(), end, name.number);
    std::string_view rest(number.ptr, end);
    if (number.ec != std::errc() || !rest.starts_with("-of-"))
        return false;
    auto count = std::from_chars(rest.data() + 4, end, name.count);
    rest = std::string_view(count.ptr, end);
    if (count.ec != std::errc() || !rest.starts_with('.') || rest.size() < 2)
        return false;
    name.key.clear();
    return unescape(rest.substr(1), name.key);
}

Result<std::unique_ptr<SystemdStore>> SystemdStore::open(std::shared_ptr<ServiceManager> manager) {
    if (!*manager)
        return fail(
            ErrorCode::kFailedPrecondition,
            "spec.keeper is systemd, but NOTIFY_SOCKET is not set: run berthd under systemd "
            "with FileDescriptorStoreMax=256 and NotifyAccess=main (configs/berthd.service "
            "is such a unit), or write keeper: process",
            "NoServiceManager");
    std::unique_ptr<SystemdStore> store(new SystemdStore(manager));
    Found found;
    for (InheritedFd& one : manager->take_inherited()) {
        Name name;
        if (!parse_name(one.name, name))
            log::warn("the service manager gave a descriptor named '{}', which is none of ours, "
                      "ignoring",
                      one.name);
        else
            found[name.key].push_back(std::move(one));
    }
    for (auto& [key, fds] : found) {
        std::vector<std::string> names;
        for (const InheritedFd& one : fds)
            names.push_back(one.name);
        auto adopted = store->adopt(key, std::move(fds));
        if (adopted)
            continue;
        log::warn("the service manager's '{}' is not whole ({}), dropping it", key,
                  adopted.error().message);
        for (const std::string& name : names)
            BERTH_TRY(manager->tell("FDSTOREREMOVE=1\nFDNAME=" + name));
    }
    BERTH_TRY(manager->barrier());
    return store;
}

Status SystemdStore::adopt(const std::string& key, std::vector<InheritedFd> fds) {
    std::vector<UniqueFd> in_order(fds.size());
    for (InheritedFd& one : fds) {
        Name name;
        if (!parse_name(one.name, name) || name.count != fds.size() || name.number >= name.count ||
            in_order[name.number])
            return fail(ErrorCode::kCorrupt,
                        fmt::format("{} descriptors, one named '{}'", fds.size(), one.name));
        in_order[name.number] = std::move(one.fd);
    }
    Entry entry;
    BERTH_ASSIGN(entry.meta, content_of(in_order.front().get()));
    entry.count = in_order.size();
    in_order.erase(in_order.begin());
    entry.found = std::move(in_order);
    entries_[key] = std::move(entry);
    return {};
}

Status SystemdStore::remove_names(const std::string& key, size_t count) {
    for (size_t number = 0; number < count; ++number) {
        BERTH_ASSIGN(std::string name, name_of({number, count, key}));
        BERTH_TRY(manager_->tell("FDSTOREREMOVE=1\nFDNAME=" + name));
    }
    return {};
}

size_t SystemdStore::descriptors() const {
    size_t all = 0;
    for (const auto& [key, entry] : entries_)
        all += entry.count;
    return all;
}

Status SystemdStore::put(const std::string& key, const std::string& meta,
                         const std::vector<int>& fds) {
    if (meta.size() > kKeeperMetaBytesMax || fds.size() > kKeeperFdsMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} bytes and {} descriptors are too much for one entry, which may "
                                "have {} and {}",
                                meta.size(), fds.size(), kKeeperMetaBytesMax, kKeeperFdsMax));
    BERTH_ASSIGN(UniqueFd first, sealed_memfd(meta));
    std::vector<int> all = {first.get()};
    all.insert(all.end(), fds.begin(), fds.end());
    std::vector<std::string> names;
    for (size_t number = 0; number < all.size(); ++number) {
        BERTH_ASSIGN(std::string name, name_of({number, all.size(), key}));
        names.push_back(std::move(name));
    }
    auto old = entries_.find(key);
    size_t old_count = old == entries_.end() ? 0 : old->second.count;
    size_t after = descriptors() - old_count + all.size();
    // The manager drops what is too much without a word.
    if (size_t most = manager_->descriptors_max(); most != 0 && after > most)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("the service manager would hold {} descriptors and takes {}: raise "
                                "FileDescriptorStoreMax= of the unit",
                                after, most),
                    "KeeperFull");
    // It ignores what it holds already, under whatever name: the old ones go first.
    BERTH_TRY(remove_names(key, old_count));
    Entry entry;
    entry.meta = meta;
    entry.count = all.size();
    entries_[key] = std::move(entry);
    for (size_t number = 0; number < all.size(); ++number)
        BERTH_TRY(manager_->tell(fmt::format("FDSTORE=1\nFDPOLL=0\nFDNAME={}", names[number]),
                                 {all[number]}));
    return manager_->barrier();
}

Result<KeptEntry> SystemdStore::get(const std::string& key) {
    auto entry = entries_.find(key);
    if (entry == entries_.end())
        return fail(ErrorCode::kNotFound, fmt::format("systemd keeps no '{}'", key));
    if (entry->second.found.size() + 1 != entry->second.count)
        return fail(
            ErrorCode::kFailedPrecondition,
            fmt::format("systemd gives '{}' back only to the next process that it starts", key));
    return KeptEntry{key, entry->second.meta, std::exchange(entry->second.found, {})};
}

Result<std::vector<KeeperEntry>> SystemdStore::list() {
    std::vector<KeeperEntry> listed;
    for (const auto& [key, entry] : entries_)
        listed.push_back({key, entry.meta, entry.count - 1});
    return listed;
}

Status SystemdStore::drop(const std::string& key) {
    auto entry = entries_.find(key);
    if (entry == entries_.end())
        return fail(ErrorCode::kNotFound, fmt::format("systemd keeps no '{}'", key));
    BERTH_TRY(remove_names(key, entry->second.count));
    BERTH_TRY(manager_->barrier());
    entries_.erase(entry);
    return {};
}

Result<KeeperInfo> SystemdStore::ping() {
    BERTH_TRY(manager_->barrier());
    return KeeperInfo{0, entries_.size(), descriptors(), "systemd"};
}

} // namespace berth
