// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/attach_desk.h"

#include "base/log.h"
#include "cache/weights/manifest.h"
#include "scheduler/node/durable.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

constexpr size_t kIdDigits = 16; // of a fingerprint: its set's id
} // namespace

void AttachDesk::handle(const Attacher& who, const protocol::Attach& request) {
    Waiter waiter{who, request, {}, Clock::now()};
    if (!request.weight_set.empty()) {
        answer_by_id(std::move(waiter));
        return;
    }
    auto key = key_of(who, request);
    if (!key) {
        refuse(waiter, key.error());
        return;
    }
    waiter.key = std::move(*key);
    if (auto may = may_attach(waiter, waiter.key.path, {}); !may) { // before anything is loaded
        refuse(waiter, may.error());
        return;
    }
    answer_by_key(std::move(waiter));
}

void AttachDesk::answer_by_id(Waiter waiter) {
    const ResidentSet* set =
        context_.catalogue.find(waiter.request.weight_set, waiter.request.device);
    if (set == nullptr && waiter.request.wait)
        for (const auto& [id, load] : context_.state().loads) {
            node::LoadKey key =
                node::published_key(node::WeightSetId(waiter.request.weight_set), load.key.device);
            bool on_its_way = load.state != node::Load::State::kEnding || load.sealed;
            bool here = waiter.request.device.empty() || waiter.request.device == key.device.value;
            if (load.key == key && on_its_way && here) {
                waiter.key = std::move(key);
                wait_for(std::move(waiter), std::nullopt); // for its publisher
                return;
            }
        }
    if (set == nullptr) {
        refuse(waiter,
               Error{ErrorCode::kNotFound,
                     fmt::format("no weight set '{}' is resident{}; see `berth get weights`",
                                 waiter.request.weight_set,
                                 waiter.request.device.empty() ? std::string()
                                                               : " on " + waiter.request.device),
                     "NotResident", 0});
        return;
    }
    grant(waiter, *set);
}

void AttachDesk::answer_by_key(Waiter waiter) {
    if (const node::WeightSet* resident = node::resident(context_.state(), waiter.key)) {
        if (const ResidentSet* set =
                context_.catalogue.find(resident->id.value, resident->device.value)) {
            answer_with(std::move(waiter), *set);
            return;
        }
    }
    ask_for_load(std::move(waiter));
}

void AttachDesk::ask_for_load(Waiter waiter) {
    if (!waiter.request.wait) {
        refuse(waiter, Error{ErrorCode::kNotFound,
                             fmt::format("{} is not resident on {}", waiter.key.path,
                                         waiter.key.device.value),
                             "NotResident", 0});
        return;
    }
    node::LoadRequested wanted;
    wanted.path = waiter.key.path;
    wanted.dtype = waiter.key.dtype;
    wanted.quantization = waiter.key.quantization;
    wanted.device = waiter.key.device;
    wanted.rank = waiter.key.rank;
    for (const policies::ModelSpec& model : context_.state().documents.models)
        if (node::load_key(model, waiter.key.device, waiter.key.rank) == waiter.key)
            wanted.model = node::ModelName(model.name);
    wait_for(std::move(waiter), std::move(wanted));
}

void AttachDesk::wait_for(Waiter waiter, std::optional<node::LoadRequested> wanted) {
    if (waiters_.size() >= kWaitersMax) {
        refuse(waiter, Error{ErrorCode::kResourceExhausted,
                             fmt::format("{} requests wait for weights already", kWaitersMax),
                             "TooManyWaiters", 0});
        return;
    }
    auto of_session = [&](const Waiter& one) { return one.who.session == waiter.who.session; };
    if (std::ranges::count_if(waiters_, of_session) >= std::ptrdiff_t{kSessionWaitersMax}) {
        refuse(waiter, Error{ErrorCode::kResourceExhausted,
                             fmt::format("{} attaches of this connection wait already: try later",
                                         kSessionWaitersMax),
                             "TooManyWaiters", 0});
        return;
    }
    protocol::Progress progress;
    progress.id = waiter.request.id;
    progress.phase = "waiting";
    server_->send(waiter.who.session, progress);
    waiters_.push_back(std::move(waiter));
    if (wanted)
        context_.post(std::move(*wanted));
}

AttachDesk::Known& AttachDesk::known(const ResidentSet& set) {
    auto [at, is_new] = known_.try_emplace({set.id, set.device});
    if (is_new) {
        at->second.environment = environment_of(set.fingerprint_json);
        std::vector<uint64_t> sizes;
        for (const Segment& segment : set.segments)
            sizes.push_back(segment.bytes);
        if (auto manifest = Manifest::open(set.manifest, sizes))
            at->second.canary = manifest->canary().digest;
    }
    return at->second;
}

void AttachDesk::answer_with(Waiter waiter, const ResidentSet& set) {
    auto& verified = known(set).verified;
    auto seen = verified.find(waiter.key.path);
    if (seen != verified.end() && Clock::now() - seen->second < kVerifiedFor) {
        grant(waiter, set);
        return;
    }
    using Changes = Result<std::vector<FieldDifference>>;
    workers_.run(
        [document = set.fingerprint_json, path = waiter.key.path] {
            return changes_on_disk(document, path);
        },
        [this, waiter = std::move(waiter), id = set.id, device = set.device](Changes changes) {
            const ResidentSet* still = context_.catalogue.find(id, device);
            if (still == nullptr) {
                answer_by_key(waiter); // dropped meanwhile
                return;
            }
            if (!changes) {
                refuse(waiter, changes.error());
                return;
            }
            if (!changes->empty() &&
                context_.state().policy.attach.on_change == policies::OnChange::kReload) {
                context_.post(node::WeightsStale{node::WeightSetId(id), node::DeviceId(device),
                                                 waiter.key.path, difference_table(*changes)});
                ask_for_load(waiter);
                return;
            }
            if (!changes->empty()) {
                refuse(waiter,
                       Error{ErrorCode::kMismatch,
                             fmt::format("the checkpoint {} has changed since weight set {} was "
                                         "loaded from it; evict that set (berth evict {}) to have "
                                         "it loaded again:\n{}",
                                         waiter.key.path, id, id, difference_table(*changes)),
                             "FingerprintMismatch", 0});
                return;
            }
            known(*still).verified[waiter.key.path] = Clock::now();
            grant(waiter, *still);
        });
}

void AttachDesk::hand_out(const Attacher& publisher, uint64_t request, const ResidentSet& set) {
    Waiter waiter{publisher, {}, {}, Clock::now()};
    waiter.request.id = request;
    grant(waiter, set, true);
}

void AttachDesk::grant(const Waiter& waiter, const ResidentSet& set, bool is_publisher) {
    if (!server_->has(waiter.who.session))
        return; // gone while a worker looked: no lease that nothing would end
    // By a path one gets what lies there, also where an equal set was loaded from another.
    const std::string& path = waiter.request.weight_set.empty() ? waiter.key.path : set.path;
    if (auto may = is_publisher ? Status() : may_attach(waiter, path, set.model); !may) {
        refuse(waiter, may.error());
        return;
    }
    std::string differences =
        environment_differences(known(set).environment, waiter.request.environment);
    if (!differences.empty()) {
        refuse(
            waiter,
            Error{ErrorCode::kMismatch,
                  fmt::format("weight set {} was made for another environment than this engine's:"
                              "\n{}",
                              set.id, differences),
                  "FingerprintMismatch", 0});
        return;
    }
    // Decided to be dropped, but not yet gone from the catalogue.
    const auto& sets = context_.state().weights;
    if (auto decided = sets.find({node::DeviceId(set.device), node::WeightSetId(set.id)});
        decided != sets.end() && decided->second.dropping) {
        refuse(waiter, Error{ErrorCode::kUnavailable,
                             fmt::format("weight set {} is being dropped: ask again", set.id),
                             "Dropping", 0});
        return;
    }
    protocol::Attached attached;
    attached.id = waiter.request.id;
    attached.weight_set = set.id;
    attached.fingerprint = set.fingerprint;
    attached.model_path = set.path;
    for (const Segment& segment : set.segments)
        attached.segment_bytes.push_back(segment.bytes);
    attached.verify_canary = !is_publisher && !waiter.who.instance.empty() &&
                             context_.state().policy.attach.verify_canary &&
                             !known(set).canary.empty();
    if (attached.verify_canary)
        context_.post(node::CanaryExpected{waiter.who.instance, node::WeightSetId(set.id)});
    server_->send(waiter.who.session, attached, set.descriptors());
    context_.metrics.attach_seconds.observe(
        std::chrono::duration<double>(Clock::now() - waiter.asked).count());

    lease(waiter.who, node::WeightSetId(set.id), node::DeviceId(set.device));
}

// One lease per set and session. An instance's own set is leased by its process already.
void AttachDesk::lease(const Attacher& who, const node::WeightSetId& set,
                       const node::DeviceId& device) {
    if (!attached_[who.session].insert({set.value, device.value}).second)
        return;
    const auto& instances = context_.state().instances;
    auto owner = instances.find(who.instance);
    if (owner != instances.end() && owner->second.leases(set, device))
        return;
    node::LeaseOpened lease;
    lease.lease = node::LeaseId{next_lease_++};
    lease.set = set;
    lease.device = device;
    lease.holder = who.holder;
    lease.instance = who.instance;
    leases_[who.session].push_back(lease.lease);
    context_.post(std::move(lease));
}

// Where the keeper was lost there may be two memories of that name: both stay.
bool AttachDesk::take_back(const Attacher& who, const protocol::PrivateLoad& held) {
    const node::WeightSetId id(held.fingerprint.substr(0, kIdDigits));
    const node::DeviceId device(held.device);
    bool leased = false, drops = false; // it may have what is being dropped
    for (const node::WeightSetId& one : {id, node::lost_id(id)}) {
        const node::WeightSet* set = node::find_set(context_.state(), one, device);
        if (set == nullptr || set->fingerprint != held.fingerprint)
            continue;
        (set->dropping ? drops : leased) = true;
        if (!set->dropping)
            lease(who, one, device);
    }
    return leased && !drops;
}

void AttachDesk::refuse(const Waiter& waiter, Error error) {
    log::info("attach refused for {}: {}", waiter.who.holder, error.message);
    protocol::Failed failed;
    failed.id = waiter.request.id;
    failed.error = std::move(error);
    server_->send(waiter.who.session, failed);
}

void AttachDesk::session_closed(SessionId session) {
    waiters_.remove_if([&](const Waiter& waiter) { return waiter.who.session == session; });
    attached_.erase(session);
    if (auto found = leases_.find(session); found != leases_.end()) {
        std::vector<node::LeaseId> ended = std::move(found->second);
        leases_.erase(found);
        for (node::LeaseId lease : ended)
            context_.post(node::LeaseClosed{lease});
    }
}

void AttachDesk::progress(const node::LoadProgress& progress) {
    const auto& loads = context_.state().loads;
    auto load = loads.find(progress.load);
    if (load == loads.end())
        return;
    for (const Waiter& waiter : waiters_) {
        if (waiter.key != load->second.key)
            continue;
        protocol::Progress message;
        message.id = waiter.request.id;
        message.phase = progress.phase;
        message.bytes_done = progress.bytes_done;
        message.bytes_total = progress.bytes_total;
        server_->send(waiter.who.session, message);
    }
}

void AttachDesk::load_finished(const node::LoadFinished& finished) {
    std::list<Waiter> answered;
    for (auto at = waiters_.begin(); at != waiters_.end();) {
        auto next = std::next(at);
        if (at->key == finished.key)
            answered.splice(answered.end(), waiters_, at);
        at = next;
    }
    const ResidentSet* set =
        finished.set ? context_.catalogue.find(finished.set->value, finished.key.device.value)
                     : nullptr;
    // Loaded this moment: nothing is left to verify.
    if (set != nullptr)
        known(*set).verified[finished.key.path] = Clock::now();
    for (const Waiter& waiter : answered) {
        if (set != nullptr)
            grant(waiter, *set);
        else
            refuse(waiter, finished.error.value_or(Error{
                               ErrorCode::kUnavailable,
                               fmt::format("{} was loaded and is gone again", finished.key.path),
                               "NotResident", 0}));
    }
}

void AttachDesk::dropped(const node::WeightSetId& set, const node::DeviceId& device) {
    known_.erase({set.value, device.value});
}

} // namespace berth
