// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/step.h"

#include <algorithm>

// Who goes where. An instance is placed when its device has room for its process, the least of its
// grant and, if they are not resident, its weights, beside what is spoken for: what those who
// matter more and wait as well will need. Its grant is what is left of that, up to its limit.
namespace berth::node {

namespace {

bool waits_for_room(const Instance& i) {
    if (i.remove_wanted || i.process_alive)
        return false;
    return i.state == InstanceState::kPending || i.state == InstanceState::kLoading ||
           (i.state == InstanceState::kEvicted && i.held_by == HeldBy::kPlanner);
}

bool comes_before(const Instance& a, const Instance& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.order < b.order;
}

} // namespace

std::vector<Instance*> Step::by_priority() {
    std::vector<Instance*> all;
    for (auto& [name, i] : s_.instances)
        all.push_back(&i);
    std::sort(all.begin(), all.end(),
              [](const Instance* a, const Instance* b) { return comes_before(*a, *b); });
    return all;
}

void Step::schedule() {
    if (!s_.ready || s_.stopping)
        return;
    for (auto& [id, load] : s_.loads)
        if (load.state == Load::State::kPlanning && load.phase == "waiting")
            try_go(load);
    for (Instance* i : by_priority()) {
        const bool settled =
            i->state == InstanceState::kRunning || i->state == InstanceState::kPaused ||
            i->state == InstanceState::kSuspended || i->state == InstanceState::kStarting;
        if ((i->remove_wanted || i->restart_wanted) && i->process_alive && settled &&
            i->substate != "Killed") {
            begin_rung(*i, policies::Rung::kEvict, i->held_by, s_.policy.preemption.grace_period);
            continue;
        }
        if (waits_for_room(*i) && i->state != InstanceState::kLoading && i->restart_at <= now_) {
            place(*i);
        } else if (i->state == InstanceState::kSuspended && i->held_by == HeldBy::kPlanner &&
                   i->session && i->restart_at <= now_) {
            Error why;
            static_cast<void>(resume_suspended(*i, true, why));
        }
    }
}

std::vector<const Device*> Step::candidates(const Instance& i) const {
    std::vector<const Device*> all;
    for (const auto& [id, device] : s_.devices)
        if (i.spec.devices.empty() || std::find(i.spec.devices.begin(), i.spec.devices.end(),
                                                id.value) != i.spec.devices.end())
            all.push_back(&device);
    return all;
}

// What must be free for it to be started there: its weights while they are loaded, then its
// process.
uint64_t Step::need_bytes(const Instance& i, const DeviceId& device) const {
    const uint64_t process = grant_bytes_min(i.spec) + process_overhead_bytes(s_, device);
    const policies::ModelSpec* model = s_.documents.find_model(i.spec.model);
    if (model == nullptr)
        return process;
    const LoadKey key = load_key(*model, device);
    if (resident(s_, key) != nullptr)
        return process;
    for (const auto& [id, load] : s_.loads)
        if (load.key == key && load.state == Load::State::kLoading)
            return process; // the load counts already
    const auto weights = s_.known_weight_bytes.find(key);
    const auto loader = s_.known_load_overhead.find(key);
    return (weights != s_.known_weight_bytes.end() ? weights->second : 0) +
           std::max(loader != s_.known_load_overhead.end() ? loader->second : 0, process);
}

uint64_t Step::spoken_for(const DeviceId& device, const Instance& taker, bool by_lower) const {
    uint64_t bytes = 0;
    const DeviceUsage on_device = usage(s_, device);
    for (const auto& [name, i] : s_.instances) {
        if (name == taker.name || comes_before(taker, i) != by_lower)
            continue;
        const bool resumes = i.state == InstanceState::kSuspended &&
                             i.held_by == HeldBy::kPlanner && i.device == device;
        if (resumes) {
            bytes += grant_bytes_min(i.spec);
            continue;
        }
        if (!waits_for_room(i) ||
            (i.device && i.state == InstanceState::kLoading && *i.device != device))
            continue;
        bool is_candidate = false;
        for (const Device* one : candidates(i))
            is_candidate = is_candidate || one->id == device;
        const uint64_t need = need_bytes(i, device);
        // Who can never fit here keeps nobody waiting.
        if (is_candidate && need + on_device.reserve_bytes <= on_device.total_bytes)
            bytes += need;
    }
    return bytes;
}

void Step::place(Instance& i) {
    const policies::ModelSpec* model = s_.documents.find_model(i.spec.model);
    struct Fit {
        const Device* device;
        bool resident;
        uint64_t need, available, most;
    };
    std::vector<Fit> fits;
    for (const Device* device : candidates(i)) {
        const DeviceUsage now = usage(s_, device->id);
        const uint64_t taken = spoken_for(device->id, i, false);
        const bool here = model == nullptr || resident(s_, load_key(*model, device->id)) != nullptr;
        fits.push_back(
            {device, here, need_bytes(i, device->id),
             now.free_bytes > taken ? now.free_bytes - taken : 0,
             now.total_bytes > now.reserve_bytes ? now.total_bytes - now.reserve_bytes : 0});
    }
    if (fits.empty()) {
        std::string here;
        for (const auto& [id, device] : s_.devices)
            here += (here.empty() ? "" : ", ") + id.value;
        return wait_for_room(i, "DeviceNotFound",
                             "none of its devices is on this node; here are: " +
                                 (here.empty() ? "none" : here));
    }
    std::sort(fits.begin(), fits.end(), [](const Fit& a, const Fit& b) {
        const bool a_fits = a.need <= a.available, b_fits = b.need <= b.available;
        if (a_fits != b_fits)
            return a_fits;
        if (a.resident != b.resident)
            return a.resident;
        if (a.available != b.available)
            return a.available > b.available;
        return a.device->id < b.device->id;
    });
    const Fit& best = fits.front();
    if (best.need <= best.available) {
        if (best.resident)
            return start_process(i, best.device->id, best.available);
        i.device = best.device->id;
        enter(i, InstanceState::kLoading, "", "", model->path + " onto " + best.device->id.value);
        start_load(load_key(*model, best.device->id), ModelName(model->name), i.priority);
        return;
    }
    const policies::PriorityClass* of_class = s_.policy.find_class(i.spec.class_name);
    Taker who{object_of(i), i.priority, of_class != nullptr && of_class->preempts_lower,
              model != nullptr ? load_key(*model, best.device->id) : LoadKey{}, &i.last_decision};
    std::string why = best.need > best.most ? "the device can never hold that" : "";
    if (best.need <= best.most && make_room(best.device->id, best.need - best.available, who, why))
        return wait_for_room(i, "WaitingForReclaim",
                             format_bytes(best.need - best.available) + " are being freed on " +
                                 best.device->id.value);
    wait_for_room(i, "InsufficientMemory",
                  "needs " + format_bytes(best.need) + " on " + best.device->id.value + ", " +
                      room_words(s_, best.device->id, best.available) +
                      (why.empty() ? "" : "; " + why));
}

void Step::wait_for_room(Instance& i, std::string reason, std::string message) {
    if (i.operation && reason != "WaitingForReclaim") {
        const Error error{ErrorCode::kResourceExhausted, message, reason, 0};
        // It was evicted and stays so: a failed resume leaves nothing half done.
        if (i.came_from == InstanceState::kEvicted) {
            i.desired = Desired::kEvicted;
            i.held_by = HeldBy::kOperator;
            enter(i, InstanceState::kEvicted, "", reason, message);
        }
        finish_operation(*i.operation, error, message);
        if (i.state == InstanceState::kEvicted)
            return;
    }
    if (i.reason == reason && i.message == message)
        return;
    if (i.reason == reason) { // the figures move; that is no event
        i.message = std::move(message);
        return;
    }
    enter(i, i.state, "", std::move(reason), std::move(message));
}

uint64_t Step::grant_size(const Instance& i, const DeviceId& device, uint64_t available) const {
    const uint64_t least = grant_bytes_min(i.spec);
    const uint64_t lower = spoken_for(device, i, true);
    const uint64_t left = available > lower ? available - lower : 0;
    return std::clamp(grant_bytes_whole(left), least, grant_bytes_max(i.spec));
}

void Step::start_process(Instance& i, const DeviceId& device, uint64_t available) {
    const policies::ModelSpec* model = s_.documents.find_model(i.spec.model);
    cancel_timers(i);
    i.device = device;
    i.overhead_bytes = process_overhead_bytes(s_, device);
    i.grant_bytes = grant_size(i, device, available - i.overhead_bytes);
    i.grant_state = GrantState::kReserved;
    i.process_alive = true;
    i.process = ProcessRef{};
    i.process_digest = policies::process_digest(i.spec, model);
    i.restart_wanted = false;
    i.desired = Desired::kRunning;
    i.held_by = HeldBy::kNobody;
    i.engine_state = EngineState::kUnknown;
    i.phases.clear();
    i.counters = Counters{};
    i.last_decision.clear();
    ++i.starts;
    if (model != nullptr) {
        const WeightSet* set = resident(s_, load_key(*model, device));
        i.weights = set->id;
        s_.weights.at({device, set->id}).last_used = now_;
    }
    enter(i, InstanceState::kStarting, "", "",
          "on " + device.value + " with a grant of " + format_bytes(i.grant_bytes));
    arm(i.timer, Timer{Timer::Kind::kStart, i.name, {}}, now_ + i.spec.engine.start_deadline);
    act(StartProcess{i.name, i.spec, model != nullptr ? *model : policies::ModelSpec{}, device,
                     i.grant_bytes});
}

} // namespace berth::node
