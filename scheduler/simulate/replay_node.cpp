// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/replay_node.h"

#include <algorithm>

namespace berth::simulate {

using node::InstanceState;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr seconds kWarmUp{120}; // from the node's start to the first arrival
constexpr seconds kDrain{600};  // after the last one, at most
constexpr size_t kRecentRequests = 100;

Nanoseconds time_for(double amount, double per_second) {
    return Nanoseconds(static_cast<int64_t>(amount / per_second * 1e9));
}

bool is_waiting(const node::Instance& i) {
    const bool below = i.state == InstanceState::kSuspended || i.state == InstanceState::kEvicted ||
                       i.state == InstanceState::kPaused;
    return i.state == InstanceState::kPending || i.state == InstanceState::kLoading ||
           (below && i.held_by != node::HeldBy::kOperator);
}

} // namespace

bool ReplayNode::is_online(const policies::Documents& documents,
                           const policies::InstanceSpec& instance) {
    const policies::PolicySpec policy = documents.effective_policy();
    const policies::PriorityClass* of_class = policy.find_class(instance.class_name);
    return of_class != nullptr && of_class->preempts_lower && !of_class->preemptible &&
           instance.engine.driver == policies::DriverKind::kBerth;
}

Shape ReplayNode::shape_of(const policies::Documents& documents, const ServiceModel& model) {
    Shape shape;
    shape.documents = documents;
    if (documents.node)
        for (const policies::HostDeviceSpec& host : documents.node->devices.host)
            shape.devices.push_back(
                {node::DeviceId(host.name), DeviceKind::kHost, host.memory_bytes});
    std::set<std::string> named;
    for (const policies::InstanceSpec& instance : documents.instances)
        named.insert(instance.devices.begin(), instance.devices.end());
    if (shape.devices.empty())
        for (const std::string& id : named)
            shape.devices.push_back(
                {node::DeviceId(id),
                 id.starts_with("host-") ? DeviceKind::kHost : DeviceKind::kCuda, model.gpu_bytes});
    for (uint64_t n = shape.devices.size(); n < model.gpus; ++n)
        shape.devices.push_back(
            {node::DeviceId("GPU-" + std::to_string(n)), DeviceKind::kCuda, model.gpu_bytes});
    for (const policies::ModelSpec& one : documents.models)
        shape.models[one.path] = {model.weight_bytes, 256ULL << 20};
    return shape;
}

ReplayNode::ReplayNode(Shape shape, const ServiceModel& model)
    : shape_(std::move(shape)), model_(model),
      daemon_(stage_, shape_, records_,
              [this](const node::Event&, const std::vector<node::Action>& actions) {
                  observe(actions);
              }),
      memory_(stage_), engines_(stage_, shape_, daemon_, memory_),
      loaders_(stage_, shape_, daemon_, memory_), guests_(stage_, daemon_, memory_) {
    stage_.faulty = false;
    stage_.start_time = model.start_time;
    stage_.load_bytes_per_second = model.load_bytes_per_second;
    daemon_.use(engines_, loaders_, guests_, memory_);
    join(engines_, loaders_, guests_);
    daemon_.on_answer = [](const node::Operation&) {};
    for (const Shape::Device& device : shape_.devices)
        stage_.account.add_device(device.id, device.bytes);
    for (const policies::InstanceSpec& instance : shape_.documents.instances)
        if (is_online(shape_.documents, instance)) {
            Server server;
            server.name = node::InstanceName(instance.name);
            servers_.push_back(std::move(server));
        }
}

std::vector<double> ReplayNode::play(const std::vector<Arrival>& arrivals) {
    ttft_ms_.assign(arrivals.size(), -1);
    open_ = arrivals.size();
    accounted_ = stage_.now;
    daemon_.start();
    began_ = stage_.now + kWarmUp;
    for (size_t n = 0; n < arrivals.size(); ++n)
        stage_.calendar.at(began_ + arrivals[n].at,
                           [this, n, &arrivals] { arrive(n, arrivals[n]); });
    const node::TimePoint last = began_ + arrivals.back().at;
    while (!stage_.calendar.empty()) {
        if (stage_.calendar.next_at() > last + kDrain || (open_ == 0 && stage_.now >= last))
            break;
        stage_.now = std::max(stage_.now, stage_.calendar.next_at());
        stage_.calendar.take()();
    }
    stage_.now = std::max(stage_.now, last);
    account();
    return ttft_ms_;
}

const node::Instance* ReplayNode::find(const node::InstanceName& name) const {
    const node::NodeState* state = daemon_.state();
    const auto found = state->instances.find(name);
    return found == state->instances.end() ? nullptr : &found->second;
}

bool ReplayNode::serves(const Server& server) const {
    const node::Instance* i = find(server.name);
    return i != nullptr && i->state == InstanceState::kRunning && i->session;
}

bool ReplayNode::is_gated(const node::DeviceId& device) const {
    const policies::PolicySpec& policy = daemon_.state()->policy;
    if (policy.mode != policies::PolicyMode::kEnforce ||
        policy.sharing.compute != policies::Sharing::kGate)
        return false;
    return std::any_of(servers_.begin(), servers_.end(), [&](const Server& server) {
        const node::Instance* i = find(server.name);
        return server.in_flight > 0 && i != nullptr && i->is_on(device);
    });
}

// How much longer online's work takes beside the batch engines that are at work there.
double ReplayNode::slowness(const node::DeviceId& device) const {
    double others = 0;
    for (const auto& [name, share] : working_)
        if (const node::Instance* i = find(name); i != nullptr && i->is_on(device))
            others += 1;
    if (others == 0)
        return 1;
    const policies::SharingSpec& sharing = daemon_.state()->policy.sharing;
    if (is_gated(device))
        return 1 / (1 - std::min(0.9, sharing.batch_share_when_busy));
    return 1 + others;
}

void ReplayNode::account() {
    const double elapsed =
        std::chrono::duration<double, std::ratio<3600>>(stage_.now - accounted_).count();
    accounted_ = stage_.now;
    for (const auto& [name, share] : working_)
        hours_[name] += elapsed * share;
    working_.clear();
    std::set<node::DeviceId> gated;
    for (const auto& [id, device] : daemon_.state()->devices)
        if (is_gated(id))
            gated.insert(id);
    for (const node::DeviceId& id : gated)
        gate_closings_ += gated_.contains(id) ? 0 : 1;
    gated_ = std::move(gated);
    for (const auto& [name, i] : daemon_.state()->instances) {
        if (i.state != InstanceState::kRunning || i.devices.empty() ||
            is_online(shape_.documents, i.spec))
            continue;
        const bool waits = std::any_of(i.devices.begin(), i.devices.end(),
                                       [this](const auto& id) { return gated_.contains(id); });
        working_[name] = waits ? daemon_.state()->policy.sharing.batch_share_when_busy : 1;
    }
}

void ReplayNode::observe(const std::vector<node::Action>& actions) {
    account();
    for (const auto& [name, i] : daemon_.state()->instances) {
        const auto [seen, fresh] = states_.try_emplace(name, i.state);
        if (!fresh && seen->second != i.state && i.state == InstanceState::kPreempting &&
            i.held_by == node::HeldBy::kPlanner)
            ++preemptions_[std::string(policies::to_string(
                i.desired == node::Desired::kPaused      ? policies::Rung::kPause
                : i.desired == node::Desired::kShrunk    ? policies::Rung::kShrink
                : i.desired == node::Desired::kSuspended ? policies::Rung::kOffload
                                                         : policies::Rung::kEvict))];
        seen->second = i.state;
        auto& [since, wait] = waits_[name];
        if (is_waiting(i)) {
            if (since == node::TimePoint())
                since = stage_.now;
            if (!i.reason.empty())
                wait.last_reason = i.reason + ": " + i.message;
        } else if (since != node::TimePoint()) {
            const double waited = std::chrono::duration<double>(stage_.now - since).count();
            wait.total_seconds += waited;
            wait.longest_seconds = std::max(wait.longest_seconds, waited);
            since = node::TimePoint();
        }
    }
    if (!actions.empty())
        stage_.after(milliseconds(0), [this] { pump_all(); });
}

void ReplayNode::arrive(size_t number, const Arrival& arrival) {
    account();
    Server& server = servers_[next_server_++ % servers_.size()];
    server.queue.push_back({number, stage_.now, arrival});
    pump(server);
    if (!server.reports) {
        server.reports = true;
        report(server);
    }
}

void ReplayNode::pump_all() {
    for (Server& server : servers_)
        pump(server);
}

// Prefills go one after the other; a request that has its first token decodes beside the others.
void ReplayNode::pump(Server& server) {
    if (server.prefills || server.queue.empty() || !serves(server))
        return;
    const node::Instance& i = *find(server.name);
    const Request request = server.queue.front();
    const uint64_t tokens = request.asks.input_tokens + request.asks.output_tokens;
    const uint64_t most = i.grant_bytes / model_.kv_bytes_per_token;
    if (server.in_flight >= model_.requests_max ||
        (server.in_flight > 0 && server.tokens + tokens > most))
        return; // when one has ended
    server.queue.pop_front();
    const node::DeviceId device = i.devices.front();
    const bool interrupts = !working_.empty() && server.in_flight == 0;
    account();
    server.prefills = true;
    ++server.in_flight;
    server.tokens += tokens;
    account();
    Nanoseconds prefill =
        time_for(static_cast<double>(request.asks.input_tokens) * slowness(device),
                 model_.prefill_tokens_per_second);
    if (interrupts && is_gated(device))
        prefill += model_.gate_delay;
    Server* kept = &server;
    stage_.after(prefill, [this, kept, request, tokens, device] {
        const double ms =
            std::chrono::duration<double, std::milli>(stage_.now - request.arrived).count();
        ttft_ms_[request.number] = ms;
        --open_;
        kept->recent_ms.push_back(ms);
        if (kept->recent_ms.size() > kRecentRequests)
            kept->recent_ms.erase(kept->recent_ms.begin());
        kept->prefills = false;
        stage_.after(time_for(static_cast<double>(request.asks.output_tokens) * slowness(device),
                              model_.decode_tokens_per_second),
                     [this, kept, tokens] {
                         account();
                         --kept->in_flight;
                         kept->tokens -= tokens;
                         account();
                         pump(*kept);
                     });
        pump(*kept);
    });
}

// About once a second while there is work, and once more when there is none.
void ReplayNode::report(Server& server) {
    node::EngineReport event;
    event.instance = server.name;
    event.counters.requests_running = server.in_flight;
    event.counters.requests_waiting = server.queue.size();
    std::vector<double> sorted = server.recent_ms;
    std::sort(sorted.begin(), sorted.end());
    for (size_t n = 0; n < node::kPercentiles.size() && !sorted.empty(); ++n)
        event.counters.ttft_ms[n] = sorted[static_cast<size_t>(
            static_cast<double>(sorted.size() - 1) * node::kPercentiles[n] / 100)];
    server.reports = server.in_flight > 0 || !server.queue.empty();
    Server* kept = &server;
    if (server.reports)
        stage_.after(seconds(1), [this, kept] { report(*kept); });
    if (engines_.of(server.name) != nullptr)
        daemon_.post(event);
}

void ReplayNode::fill(ReplayReport& report) const {
    report.seconds = std::chrono::duration<double>(stage_.now - began_).count();
    for (const auto& [name, hours] : hours_) {
        report.batch_hours += hours;
        report.batch_hours_by_instance[name.value] = hours;
    }
    report.preemptions = preemptions_;
    report.gate_closings = gate_closings_;
    for (const auto& [name, waited] : waits_) {
        ReplayReport::Wait wait = waited.second;
        if (waited.first != node::TimePoint()) {
            const double more = std::chrono::duration<double>(stage_.now - waited.first).count();
            wait.total_seconds += more;
            wait.longest_seconds = std::max(wait.longest_seconds, more);
        }
        if (wait.total_seconds > 0)
            report.waits[name.value] = wait;
    }
}

} // namespace berth::simulate
