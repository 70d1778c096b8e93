// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/what_if.h"

#include "scheduler/node/tiers.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <set>
#include <tuple>

namespace berth {

using namespace std::chrono_literals;

namespace {

constexpr Nanoseconds kHorizon = 1h;
constexpr size_t kEventsMax = 2'000;
constexpr int kFirstPid = 1 << 23; // beyond any that the kernel gives

// One play. Actions become the events that a world without delays and faults would answer.
class Play {
  public:
    Play(node::NodeState state, node::TimePoint now)
        : state_(std::move(state)), now_(now), begin_(now) {
        if (state_.plan_timer)
            timers_[*state_.plan_timer] = state_.plan_at;
    }

    WhatIf::Answer ask(const WhatIf::Question& question);

    void operator()(const node::StartLoad& a);
    void operator()(const node::StartCopy& a);
    void operator()(const node::GoLoad& a);
    void operator()(const node::RefuseLoad& a) { post(node::LoaderExited{a.load, "ended"}); }
    void operator()(const node::KillLoad& a) { post(node::LoaderExited{a.load, "ended"}); }
    void operator()(const node::KeepWeights& a) { post(node::LoaderExited{a.load, "ended"}); }
    void operator()(const node::DropWeights& a);
    void operator()(const node::StartProcess& a);
    void operator()(const node::TerminateProcess& a) { end(a.instance, a.process); }
    void operator()(const node::KillProcess& a) { end(a.instance, a.process); }
    void operator()(const node::StopProcess& a);
    void operator()(const node::ContinueProcess& a);
    void operator()(const node::SendCommand& a);
    void operator()(const node::ConfirmBytes& a);
    void operator()(const node::ArmTimer& a) {
        const auto timer = state_.timers.find(a.timer); // nobody falls silent in a play
        if (timer == state_.timers.end() || timer->second.kind != node::Timer::Kind::kLook)
            timers_[a.timer] = a.at;
    }
    void operator()(const node::CancelTimer& a) { timers_.erase(a.timer); }
    void operator()(const node::Decision& a);
    template <typename Other>
    void operator()(const Other&) {} // records and words

  private:
    void post(const node::Event& event);
    void carry_out();
    bool pass_time();
    void finish_what_is_under_way();
    bool all_started() const;
    std::set<std::string> alive() const;
    void end(const node::InstanceName& name, const node::ProcessRef& process);
    void note(std::string action, std::string object, const std::string& device, uint64_t bytes);
    const node::Instance* find(const node::InstanceName& name) const;
    static std::string device_of(const node::Instance* i) {
        return i == nullptr || i->devices.empty() ? "" : i->devices.front().value;
    }

    node::NodeState state_;
    node::TimePoint now_, begin_;
    std::deque<node::Action> to_do_;
    std::map<node::TimerId, node::TimePoint> timers_;
    std::map<node::LoadId, node::WeightSetId> sets_;
    std::map<std::string, uint64_t> set_bytes_;
    std::map<std::string, std::string> whys_; // of what a decision took
    std::map<std::string, WhatIf::Step> starts_;
    std::set<std::string> asked_;
    std::set<std::string> unchanged_; // of these: they run, and go on
    std::set<std::string> ending_;    // whose end is among the steps
    WhatIf::Answer answer_;
    bool recording_ = false;
    size_t events_ = 0;
    int next_pid_ = kFirstPid;
};

void Play::post(const node::Event& event) {
    ++events_;
    for (node::Action& action : node::apply(state_, event, now_))
        to_do_.push_back(std::move(action));
}

const node::Instance* Play::find(const node::InstanceName& name) const {
    const auto found = state_.instances.find(name);
    return found == state_.instances.end() ? nullptr : &found->second;
}

void Play::note(std::string action, std::string object, const std::string& device, uint64_t bytes) {
    if (!recording_)
        return;
    const auto why = whys_.find(object);
    answer_.steps.push_back({std::move(action), std::move(object), device, bytes,
                             why == whys_.end() ? "" : why->second, now_ - begin_});
}

void Play::operator()(const node::StartLoad& a) {
    uint64_t bytes = 0;
    if (const auto known = state_.known_weight_bytes.find(a.key);
        known != state_.known_weight_bytes.end())
        bytes = known->second;
    else if (const auto measured = set_bytes_.find(a.key.path); measured != set_bytes_.end())
        bytes = measured->second / a.key.ranks;
    uint64_t overhead = 0;
    if (const auto known = state_.known_load_overhead.find(a.key);
        known != state_.known_load_overhead.end())
        overhead = known->second;
    else if (const auto device = state_.devices.find(a.key.device);
             device != state_.devices.end() && device->second.kind == DeviceKind::kCuda)
        overhead = node::kCudaOverheadBytes;
    const node::WeightSetId set =
        a.from.empty()
            ? node::WeightSetId("what-if-" + std::to_string(static_cast<uint64_t>(a.load)))
            : a.from;
    sets_[a.load] = set;
    note("Load", a.key.path, a.key.device.value, bytes);
    post(node::LoadPlanned{a.load, "what-if", set, bytes, overhead});
}

void Play::operator()(const node::StartCopy& a) {
    sets_[a.load] = a.set;
    const auto load = state_.loads.find(a.load);
    const uint64_t bytes = load == state_.loads.end() ? 0 : load->second.weight_bytes;
    if (a.to != node::kImageTier)
        return post(node::LoadPlanned{a.load, "what-if", a.set, bytes, 0});
    post(node::ImageWritten{a.load, bytes});
    post(node::LoaderExited{a.load, "ended"});
}

void Play::operator()(const node::GoLoad& a) {
    const auto load = state_.loads.find(a.load);
    const auto set = sets_.find(a.load);
    if (load != state_.loads.end() && set != sets_.end())
        post(node::LoadSealed{a.load, "what-if", set->second, load->second.weight_bytes});
}

void Play::operator()(const node::DropWeights& a) {
    const auto set = state_.weights.find({a.device, a.set});
    note("Drop", "weights/" + a.set.value, a.device.value,
         set == state_.weights.end() ? 0 : set->second.bytes);
    post(node::WeightsDropped{a.set, a.device});
}

void Play::operator()(const node::StartProcess& a) {
    std::string where;
    for (const node::DeviceId& device : a.devices)
        where += (where.empty() ? "" : ", ") + device.value;
    note("Start", "instance/" + a.instance.value, where, a.grant_bytes);
    if (recording_)
        starts_.emplace(a.instance.value, answer_.steps.back());
    ending_.erase(a.instance.value);
    const node::ProcessRef process{next_pid_++, 1};
    post(node::ProcessStarted{a.instance, process, "what-if"});
    if (a.spec.engine.driver == policies::DriverKind::kProcess)
        return;
    node::SessionOpened hello;
    hello.instance = a.instance;
    hello.process = process;
    hello.grant_bytes = a.grant_bytes;
    post(hello);
    node::EngineStateChanged ready;
    ready.instance = a.instance;
    ready.state = node::EngineState::kReady;
    ready.grant_bytes = a.grant_bytes;
    post(ready);
}

void Play::end(const node::InstanceName& name, const node::ProcessRef& process) {
    if (const node::Instance* i = find(name); i != nullptr && ending_.insert(name.value).second)
        note("Evict", "instance/" + name.value, device_of(i), i->grant_bytes + i->overhead_bytes);
    post(node::ProcessExited{name, process, false, "ended", ""});
}

void Play::operator()(const node::StopProcess& a) {
    const node::Instance* i = find(a.instance);
    if (i != nullptr && i->desired == node::Desired::kPaused)
        note("Pause", "instance/" + a.instance.value, device_of(i), 0);
    post(node::ProcessStopped{a.instance, a.process});
}

void Play::operator()(const node::ContinueProcess& a) {
    note("Resume", "instance/" + a.instance.value, device_of(find(a.instance)), 0);
    post(node::ProcessContinued{a.instance, a.process});
}

void Play::operator()(const node::SendCommand& a) {
    const node::Instance* i = find(a.instance);
    if (i == nullptr)
        return;
    const std::string object = "instance/" + a.instance.value, device = device_of(i);
    node::CommandDone done;
    done.instance = a.instance;
    done.command = a.command;
    switch (a.kind) {
    case node::CommandKind::kStop:
        return end(a.instance, i->process);
    case node::CommandKind::kOffload:
        note("Offload", object, device, i->grant_bytes);
        done.host_bytes = i->grant_bytes;
        break;
    case node::CommandKind::kShrink:
        done.grant_bytes = a.grant_bytes;
        note("Shrink", object, device, i->grant_bytes - std::min(i->grant_bytes, a.grant_bytes));
        break;
    case node::CommandKind::kGrow:
        done.grant_bytes = a.grant_bytes;
        note("Grow", object, device, a.grant_bytes);
        break;
    case node::CommandKind::kServe:
        note("Serve", object, device, 0);
        break;
    case node::CommandKind::kPause:
        note("Pause", object, device, 0);
        break;
    case node::CommandKind::kResume:
    case node::CommandKind::kRestore:
        done.grant_bytes = a.grant_bytes;
        note("Resume", object, device, a.grant_bytes);
        break;
    }
    post(done);
}

void Play::operator()(const node::ConfirmBytes& a) {
    if (const node::Instance* i = find(a.instance))
        post(node::BytesConfirmed{a.instance, i->claimed_grant_bytes, a.process});
}

void Play::operator()(const node::Decision& a) {
    for (const node::Decision::Candidate& one : a.candidates)
        if (one.taken && a.carried_out)
            whys_[one.name] = "for " + a.object;
    if (recording_)
        answer_.decisions.push_back(a);
}

void Play::carry_out() {
    while (!to_do_.empty() && events_ < kEventsMax && !(recording_ && all_started())) {
        const node::Action action = std::move(to_do_.front());
        to_do_.pop_front();
        std::visit(*this, action);
    }
}

bool Play::all_started() const {
    return std::all_of(asked_.begin(), asked_.end(), [this](const std::string& name) {
        return starts_.contains(name) || unchanged_.contains(name);
    });
}

// Those of the asked that have a process.
std::set<std::string> Play::alive() const {
    std::set<std::string> names;
    for (const std::string& name : asked_)
        if (const node::Instance* i = find(node::InstanceName(name));
            i != nullptr && i->process_alive && !i->restart_wanted &&
            i->state != node::InstanceState::kPreempting)
            names.insert(name);
    return names;
}

// To the next deadline; false: there is none, or it is too far away.
bool Play::pass_time() {
    const auto next =
        std::min_element(timers_.begin(), timers_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (next == timers_.end() || next->second > begin_ + kHorizon || events_ >= kEventsMax)
        return false;
    now_ = std::max(now_, next->second);
    const node::TimerId timer = next->first;
    timers_.erase(next);
    post(node::DeadlineExpired{timer});
    return true;
}

// Commands that were sent, loads that run, sets that go: their answers would come by themselves.
void Play::finish_what_is_under_way() {
    const auto under_way = [this](const std::string& words) { answer_.under_way.push_back(words); };
    const auto weights = state_.weights;
    for (const auto& [key, set] : weights)
        if (set.dropping && !set.drop_waits && set.drop_error.empty()) {
            under_way("weights " + set.id.value + " leave " + set.device.value);
            post(node::WeightsDropped{set.id, set.device});
        }
    const auto loads = state_.loads;
    for (const auto& [id, load] : loads) {
        if (!load.holder.empty())
            continue; // an engine fills it: it ends when that engine says so
        under_way("load of " + load.key.path + " onto " + load.key.device.value);
        sets_[id] = load.from.empty()
                        ? node::WeightSetId("what-if-" + std::to_string(static_cast<uint64_t>(id)))
                        : load.from;
        if (load.state == node::Load::State::kEnding)
            post(node::LoaderExited{id, "ended"});
        else if (load.state == node::Load::State::kLoading)
            post(node::LoadSealed{id, "what-if", sets_[id], load.weight_bytes});
    }
    const auto instances = state_.instances;
    for (const auto& [name, i] : instances) {
        if (i.command || i.state == node::InstanceState::kPreempting ||
            i.state == node::InstanceState::kResuming)
            under_way(name.value + " is " + std::string(to_string(i.state)));
        if (i.state == node::InstanceState::kPreempting && i.desired == node::Desired::kEvicted) {
            end(name, i.process);
        } else if (i.command && i.session) {
            node::SendCommand sent;
            sent.instance = name;
            sent.command = *i.command;
            sent.kind = i.command_kind;
            sent.grant_bytes =
                i.command_kind == node::CommandKind::kShrink ? i.grant_bytes_next : i.grant_bytes;
            (*this)(sent);
        } else if (i.substate == "Reclaiming" && !i.devices.empty()) {
            (*this)(node::ConfirmBytes{name, i.devices.front(), i.process});
        }
    }
    carry_out();
}

WhatIf::Answer Play::ask(const WhatIf::Question& question) {
    set_bytes_ = question.set_bytes;
    finish_what_is_under_way();
    to_do_.clear();
    asked_ = {question.asked.begin(), question.asked.end()};
    ending_.clear();
    recording_ = true;
    const std::set<std::string> before = alive();
    post(node::DocumentsApplied{question.documents});
    const std::set<std::string> after = alive();
    std::set_intersection(before.begin(), before.end(), after.begin(), after.end(),
                          std::inserter(unchanged_, unchanged_.end()));
    carry_out();
    std::map<std::string, std::pair<std::string, std::string>> first; // why not at once
    for (const std::string& name : asked_)
        if (const node::Instance* i = find(node::InstanceName(name)); i && !i->reason.empty())
            first[name] = {i->reason, i->message};
    while (!all_started() && pass_time())
        carry_out();
    for (const std::string& name : question.asked) {
        WhatIf::Outcome outcome;
        outcome.instance = name;
        if (const node::Instance* i = find(node::InstanceName(name))) {
            outcome.class_name = i->spec.class_name;
            outcome.priority = i->priority;
            outcome.reason = i->reason;
            outcome.message = i->message;
            outcome.grant_bytes = i->grant_bytes;
            for (const node::DeviceId& device : i->devices)
                outcome.devices.push_back(device.value);
            if (unchanged_.contains(name))
                outcome.verdict = WhatIf::Outcome::Verdict::kUnchanged;
        }
        const auto why = first.find(name);
        const bool now_reclaims = outcome.reason == "WaitingForReclaim";
        if (const auto start = starts_.find(name); start != starts_.end()) {
            outcome.verdict = WhatIf::Outcome::Verdict::kRuns;
            outcome.after = start->second.after;
            outcome.reason = outcome.message = "";
            if (outcome.after.count() > 0 && why != first.end())
                std::tie(outcome.reason, outcome.message) = why->second;
        } else if (why != first.end() && !now_reclaims &&
                   why->second.first != "WaitingForReclaim") {
            std::tie(outcome.reason, outcome.message) = why->second;
        }
        answer_.outcomes.push_back(std::move(outcome));
    }
    return std::move(answer_);
}

} // namespace

WhatIf::Answer WhatIf::play(node::NodeState state, const Question& question, node::TimePoint now) {
    return Play(std::move(state), now).ask(question);
}

std::string_view to_string(WhatIf::Outcome::Verdict verdict) {
    switch (verdict) {
    case WhatIf::Outcome::Verdict::kRuns:
        return "Runs";
    case WhatIf::Outcome::Verdict::kUnchanged:
        return "Unchanged";
    case WhatIf::Outcome::Verdict::kWaits:
        break;
    }
    return "Waits";
}

} // namespace berth
