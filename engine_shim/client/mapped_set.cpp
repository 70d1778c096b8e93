// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/mapped_set.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <sys/stat.h>

namespace berth {

namespace {

struct Cache {
    std::mutex mutex; // guards sets, and is held while one is mapped
    std::map<std::string, std::weak_ptr<const WeightSet::Mapped>> sets;
};

Cache& cache() {
    static Cache one;
    return one;
}

// On the host a set that was dropped and loaded again is other memory under the same fingerprint,
// and its inodes tell. GPU descriptors have no inode of their own: there the fingerprint must do,
// and it may, since sealed sets of one fingerprint are equal.
Result<std::string> identity_of(Device& device, const std::string& fingerprint,
                                const std::vector<UniqueFd>& fds) {
    std::string identity = device.id() + '/' + fingerprint;
    if (device.capabilities().kind != DeviceKind::kHost)
        return identity;
    for (size_t i = 1; i < fds.size(); ++i) {
        struct stat facts{};
        if (::fstat(fds[i].get(), &facts) != 0)
            return fail_errno("looking at a segment");
        identity += fmt::format("/{}:{}", facts.st_dev, facts.st_ino);
    }
    return identity;
}

struct Contents {
    bool weights = false;
    bool states = false;
};

// By segment. Only a published set's manifest has states, and costs a look at each entry.
std::vector<Contents> contents_of(const Manifest& manifest, size_t segments) {
    std::vector<Contents> contents(segments);
    for (size_t i = 0; manifest.has_states() && i < manifest.size(); ++i) {
        TensorView tensor = manifest.at(i);
        bool state = tensor.kind == TensorKind::kState;
        (state ? contents[tensor.segment].states : contents[tensor.segment].weights) = true;
    }
    return contents;
}

} // namespace

Result<std::shared_ptr<const WeightSet::Mapped>>
map_set(Device& device, const std::string& fingerprint, std::span<const uint64_t> segment_bytes,
        std::vector<UniqueFd> fds, std::shared_ptr<void> own) {
    if (fds.size() != segment_bytes.size() + 1)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("a weight set of {} segments came with {} descriptors instead of "
                                "{}: nothing was mapped",
                                segment_bytes.size(), fds.size(), segment_bytes.size() + 1));
    Cache& known = cache();
    std::lock_guard lock(known.mutex);
    std::erase_if(known.sets, [](const auto& entry) { return entry.second.expired(); });
    BERTH_ASSIGN(std::string identity, identity_of(device, fingerprint, fds));
    if (auto found = known.sets.find(identity); found != known.sets.end())
        if (auto set = found->second.lock())
            return set;

    BERTH_ASSIGN(Manifest manifest, Manifest::open(fds.front(), segment_bytes));
    auto set =
        std::make_shared<WeightSet::Mapped>(WeightSet::Mapped{{}, std::move(manifest), {}, {}});
    if (set->manifest.fingerprint() != fingerprint)
        return fail(ErrorCode::kMismatch,
                    fmt::format("the manifest is of weight set {}, {} was announced: nothing was "
                                "mapped",
                                set->manifest.fingerprint(), fingerprint));
    const std::vector<Contents> contents = contents_of(set->manifest, segment_bytes.size());
    for (size_t i = 0; i < segment_bytes.size(); ++i) {
        Segment segment{std::move(fds[i + 1]), segment_bytes[i]};
        Mapping mapping;
        if (contents[i].weights || !contents[i].states) {
            BERTH_ASSIGN(mapping, device.map_read_only(segment));
        }
        set->mappings.push_back(std::move(mapping));
        set->templates.push_back(contents[i].states ? std::move(segment) : Segment());
    }
    set->own = std::move(own);
    known.sets[identity] = set;
    return std::shared_ptr<const WeightSet::Mapped>(std::move(set));
}

} // namespace berth
