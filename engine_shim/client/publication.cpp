// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/publication.h"

#include "base/log.h"
#include "cache/weights/device_kernels.h"
#include "engine_shim/client/publication_state.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

constexpr int kSealTries = 5; // connections that may be lost during one seal
constexpr size_t kNamesShown = 5;

bool is_digest(const std::string& text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

double since_ms(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
}

} // namespace

Publication::Publication(std::unique_ptr<State> state) : state_(std::move(state)) {}

Publication::~Publication() {
    state_->give_up();
}

void Publication::State::give_up() {
    if (sealed)
        return;
    sealed = true;
    {
        std::lock_guard lock(link.device_mutex);
        segments.clear(); // before berthd counts their bytes as free
    }
    link.held->let_go(held);
}

const std::string& Publication::fingerprint() const {
    return state_->asked.fingerprint;
}

const std::string& Publication::weight_set() const {
    return state_->id;
}

Result<const PlannedStorage*> Publication::State::find(const std::string& name) const {
    if (sealed)
        return fail(ErrorCode::kFailedPrecondition,
                    "the publication has ended: nothing more can be put into it", "Sealed");
    auto owner = plan.owner.find(name);
    if (owner == plan.owner.end())
        return fail(ErrorCode::kNotFound,
                    fmt::format("tensor '{}' is not among the {} that were declared", name,
                                plan.owner.size()),
                    "NotDeclared");
    return &plan.storages.at(owner->second);
}

Result<std::span<std::byte>> Publication::storage(const std::string& name) {
    BERTH_ASSIGN(const PlannedStorage* storage, state_->find(name));
    return std::span<std::byte>(state_->address(*storage), storage->bytes);
}

Status Publication::filled(const std::string& name) {
    BERTH_TRY(state_->find(name));
    state_->filled.insert(state_->plan.owner.at(name));
    return {};
}

Status Publication::write(const std::string& name, uint64_t offset,
                          std::span<const std::byte> bytes) {
    BERTH_ASSIGN(const PlannedStorage* storage, state_->find(name));
    if (offset > storage->bytes || bytes.size() > storage->bytes - offset)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} bytes at {} do not fit tensor '{}', whose storage was declared "
                                "with {}",
                                bytes.size(), offset, name, storage->bytes),
                    "TooMuch");
    {
        std::lock_guard lock(state_->link.device_mutex);
        BERTH_TRY(state_->device.copy_to_device(state_->address(*storage) + offset, bytes.data(),
                                                bytes.size()));
    }
    return bytes.size() == storage->bytes ? filled(name) : Status();
}

Status Publication::set_canary(std::string input, std::string digest) {
    if (!is_digest(digest))
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("a canary's digest is a SHA-256 of 64 lower-case hexadecimal "
                                "digits, found '{:.80}'",
                                digest));
    state_->plan.parts.canary_input = std::move(input);
    state_->plan.parts.canary_digest = std::move(digest);
    return {};
}

Status Publication::State::create_segments() {
    std::lock_guard lock(link.device_mutex);
    for (uint64_t bytes : plan.parts.segment_bytes) {
        BERTH_ASSIGN(auto segment, device.create_segment(bytes, "berth-publish"));
        if (segment->bytes() != bytes)
            return fail(ErrorCode::kInternal, fmt::format("a segment of {} bytes was made for {}",
                                                          segment->bytes(), bytes));
        segments.push_back(std::move(segment));
    }
    return {};
}

Status Publication::State::check_filled() const {
    std::vector<std::string> missing;
    for (const auto& [name, storage] : plan.storages)
        if (storage.bytes > 0 && !filled.contains(name))
            missing.push_back(name);
    if (missing.empty())
        return {};
    const size_t count = missing.size();
    missing.resize(std::min(count, kNamesShown));
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("{} of {} declared storages were not filled: {}{}; write them, or say "
                            "that they are filled, or declare less",
                            count, plan.storages.size(), fmt::join(missing, ", "),
                            count > kNamesShown ? ", ..." : ""),
                "NotFilled");
}

// As a load's: XXH3-64 of each 64 KiB of a storage, folded.
Status Publication::State::compute_checksums() {
    std::lock_guard lock(link.device_mutex);
    BERTH_TRY(device.synchronize());
    std::vector<DeviceExtent> extents;
    for (const auto& [name, storage] : plan.storages)
        extents.push_back({address(storage), storage.bytes});
    BERTH_ASSIGN(std::vector<Checksum> checksums, checksums_of(device, extents));
    std::map<std::string_view, Checksum> sums;
    size_t next = 0;
    for (const auto& [name, storage] : plan.storages)
        sums[name] = checksums[next++];
    for (ManifestEntry& entry : plan.parts.entries)
        entry.checksum = sums.at(plan.owner.at(entry.name));
    return {};
}

Result<std::vector<Segment>> Publication::State::seal_segments() {
    std::lock_guard lock(link.device_mutex);
    std::vector<Segment> sealed_ones;
    for (auto& segment : segments) {
        BERTH_ASSIGN(Segment one, segment->seal());
        sealed_ones.push_back(std::move(one));
    }
    segments.clear();
    return sealed_ones;
}

Result<WeightSet> Publication::State::hand_over(const UniqueFd& manifest,
                                                const std::vector<Segment>& sealed_ones,
                                                protocol::Phases phases) {
    protocol::Sealed message;
    message.fingerprint = asked.fingerprint;
    message.segment_bytes = plan.parts.segment_bytes;
    message.phases = std::move(phases);
    std::vector<int> fds{manifest.get()};
    for (const Segment& segment : sealed_ones)
        fds.push_back(segment.fd.get());
    for (int left = kSealTries; left > 0; --left) {
        BERTH_TRY(
            link.link->wait_up(std::chrono::steady_clock::now() + link.options.connect_timeout));
        bool lost = false;
        auto reply = link.link->request(message, fds, {}, lost);
        if (reply)
            return client.mapped(device, reply->attached, std::move(reply->fds));
        if (lost) {
            log::info("the connection was lost while a set was handed over, trying again");
            continue;
        }
        // Over a restart of berthd somebody else may have sealed the same set; or the answer to
        // our own was lost.
        if (reply.error().reason != "NotPublishing")
            return fail(reply.error());
        others = true;
        return client.attach_published(device, asked, &plan.parts, {});
    }
    return fail(ErrorCode::kUnavailable,
                fmt::format("berthd went away {} times while one set was handed over: look at its "
                            "log",
                            kSealTries),
                "BerthdUnstable");
}

Result<WeightSet> Publication::seal() {
    State& state = *state_;
    if (state.sealed)
        return fail(ErrorCode::kFailedPrecondition, "the publication has ended", "Sealed");
    BERTH_TRY(state.check_filled()); // it stays open: the rest may still come
    protocol::Phases phases;
    auto all = [&]() -> Result<WeightSet> {
        auto start = std::chrono::steady_clock::now();
        BERTH_TRY(state.compute_checksums());
        phases["checksum"] = since_ms(start);
        start = std::chrono::steady_clock::now();
        state.plan.parts.fingerprint = state.asked.fingerprint;
        BERTH_ASSIGN(UniqueFd manifest, write_manifest(state.plan.parts));
        BERTH_ASSIGN(std::vector<Segment> sealed_ones, state.seal_segments());
        phases["seal"] = since_ms(start);
        return state.hand_over(manifest, sealed_ones, phases);
    };
    auto set = all();
    if (!set) {
        state.give_up();
        return set;
    }
    state.sealed = true;
    state.link.set_weights("shared " + set->id());
    if (state.others)
        state.link.held->let_go(state.held); // its own segments are gone by now
    else
        state.link.held->forget(state.held);
    return set;
}

} // namespace berth
