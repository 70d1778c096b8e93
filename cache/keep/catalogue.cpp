// SPDX-License-Identifier: Apache-2.0
#include "cache/keep/catalogue.h"

#include "base/json.h"

#include <fmt/format.h>

#include <limits>

namespace berth {

namespace {

bool is_on(const ResidentSet& set, std::string_view device) {
    return device.empty() || set.device == device;
}

// How many leaves differ; a field that only one side has counts as one.
size_t differences(const json::value& a, const json::value& b) {
    if (a == b)
        return 0;
    const auto* left = a.if_object();
    const auto* right = b.if_object();
    if (left == nullptr || right == nullptr)
        return 1;
    size_t count = 0;
    for (const auto& [name, field] : *left) {
        const json::value* other = right->if_contains(name);
        count += other == nullptr ? 1 : differences(field, *other);
    }
    for (const auto& [name, field] : *right)
        count += left->contains(name) ? 0 : 1;
    return count;
}

} // namespace

uint64_t ResidentSet::bytes() const {
    uint64_t sum = 0;
    for (const Segment& segment : segments)
        sum += segment.bytes;
    return sum;
}

std::string ResidentSet::key() const {
    return fmt::format("set/{}@{}", id, device);
}

std::vector<int> ResidentSet::descriptors() const {
    std::vector<int> all{manifest.get()};
    for (const Segment& segment : segments)
        all.push_back(segment.fd.get());
    return all;
}

Status Catalogue::add(ResidentSet set) {
    if (set.id.empty() || set.device.empty())
        return fail(ErrorCode::kInternal, "a weight set without an id or a device");
    auto key = std::pair(set.id, set.device);
    if (sets_.contains(key))
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("weight set {} is on {} already", set.id, set.device));
    sets_.emplace(std::move(key), std::move(set));
    return {};
}

Result<ResidentSet> Catalogue::remove(std::string_view id, std::string_view device) {
    auto found = sets_.find(std::pair(std::string(id), std::string(device)));
    if (found == sets_.end())
        return fail(ErrorCode::kNotFound, fmt::format("weight set {} is not on {}", id, device));
    ResidentSet set = std::move(found->second);
    sets_.erase(found);
    return set;
}

ResidentSet* Catalogue::find(std::string_view id, std::string_view device) {
    for (auto& [key, set] : sets_)
        if (set.id == id && is_on(set, device))
            return &set;
    return nullptr;
}

ResidentSet* Catalogue::find_by_fingerprint(std::string_view fingerprint, std::string_view device) {
    for (auto& [key, set] : sets_)
        if (set.fingerprint == fingerprint && is_on(set, device))
            return &set;
    return nullptr;
}

ResidentSet* Catalogue::find_by_model(std::string_view model, std::string_view device) {
    ResidentSet* newest = nullptr;
    for (auto& [key, set] : sets_)
        if ((set.model == model || set.path == model) && is_on(set, device) &&
            (newest == nullptr || set.loaded_at_ms > newest->loaded_at_ms))
            newest = &set;
    return newest;
}

const ResidentSet* Catalogue::nearest(std::string_view model, std::string_view path,
                                      std::string_view fingerprint_json) const {
    auto wanted = json::parse(fingerprint_json, "the fingerprint");
    auto closest = [&](auto&& belongs) {
        const ResidentSet* best = nullptr;
        size_t best_differences = std::numeric_limits<size_t>::max();
        for (const auto& [key, set] : sets_) {
            if (!belongs(set))
                continue;
            auto has = json::parse(set.fingerprint_json, "the fingerprint");
            size_t count =
                wanted && has ? differences(*wanted, *has) : std::numeric_limits<size_t>::max() - 1;
            if (count < best_differences) {
                best = &set;
                best_differences = count;
            }
        }
        return best;
    };
    const ResidentSet* best = nullptr;
    if (!model.empty())
        best = closest([&](const ResidentSet& set) { return set.model == model; });
    if (best == nullptr && !path.empty())
        best = closest([&](const ResidentSet& set) { return set.path == path; });
    return best;
}

std::vector<const ResidentSet*> Catalogue::all() const {
    std::vector<const ResidentSet*> out;
    out.reserve(sets_.size());
    for (const auto& [key, set] : sets_)
        out.push_back(&set);
    return out;
}

uint64_t Catalogue::bytes_on(std::string_view device) const {
    uint64_t sum = 0;
    for (const auto& [key, set] : sets_)
        sum += is_on(set, device) ? set.bytes() : 0;
    return sum;
}

} // namespace berth
