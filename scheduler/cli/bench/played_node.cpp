// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/played_node.h"

#include "policies/yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

namespace berth::cli::bench {

namespace {

constexpr uint64_t kGi = uint64_t{1} << 30;
constexpr size_t kModels = 20;
constexpr uint64_t kModelBytes = kGi;
constexpr uint64_t kLoaderBytes = kGi / 4;
// Beyond it the node and its engines talk in circles.
constexpr size_t kStepsMax = 200'000;

// Of this thread: what others do on the machine meanwhile does not count.
double thread_ms() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

std::string documents_text(const NodeShape& shape) {
    std::string text = "kind: ColocationPolicy\nmetadata: {name: p}\n"
                       "spec: {mode: Enforce, triggers: [{class: online, on: QueueDepth, above: 4, "
                       "for: 50ms}]}\n";
    for (size_t n = 0; n < kModels; ++n)
        text +=
            fmt::format("---\nkind: Model\nmetadata: {{name: m{}}}\nspec: {{path: /m/{}}}\n", n, n);
    for (size_t n = 0; n < shape.instances; ++n) {
        const uint64_t megabytes = shape.crowded ? 1024 * (1 + n % 5) : 256 * (1 + n % 3);
        text += fmt::format("---\nkind: Instance\nmetadata: {{name: i{}}}\n"
                            "spec: {{model: m{}, priorityClassName: {}, restart: OnFailure, "
                            "resources: {{requests: {{memory: {}Mi}}, limits: {{memory: {}Mi}}}}, "
                            "engine: {{command: [engine]}}}}\n",
                            n, n % kModels, n % 3 == 0 ? "online" : "batch", megabytes,
                            megabytes + (shape.crowded ? 1024 : 0));
    }
    return text;
}

node::WeightSetId set_of(const node::LoadKey& key) {
    return node::WeightSetId(fmt::format("{:0>16}", key.path.substr(key.path.rfind('/') + 1)));
}

} // namespace

// What whoever carries the action out says of it. Records need no answer.
struct PlayedNode::Answer {
    PlayedNode& played;

    template <typename Action>
    void operator()(const Action&) const {}
    void operator()(const node::StartLoad& load) const {
        const node::WeightSetId set = set_of(load.key);
        played.apply("loader",
                     node::LoadPlanned{load.load, set.value, set, kModelBytes, kLoaderBytes});
    }
    void operator()(const node::GoLoad& go) const {
        const auto load = played.state_.loads.find(go.load);
        if (load == played.state_.loads.end())
            return;
        const node::WeightSetId set = set_of(load->second.key);
        played.apply("loader", node::LoadSealed{go.load, set.value, set, kModelBytes});
    }
    void operator()(const node::KeepWeights& keep) const {
        played.apply("loader", node::LoaderExited{keep.load, "exit code 0"});
    }
    void operator()(const node::RefuseLoad& refused) const {
        played.apply("loader", node::LoaderExited{refused.load, "exit code 1"});
    }
    void operator()(const node::KillLoad& killed) const {
        played.apply("loader", node::LoaderExited{killed.load, "killed by SIGKILL"});
    }
    void operator()(const node::DropWeights& drop) const {
        played.apply("loader", node::WeightsDropped{drop.set, drop.device});
    }
    void operator()(const node::StartProcess& start) const {
        const node::ProcessRef process{played.next_pid_++, 1};
        played.mapped_[start.instance] = start.grant_bytes;
        played.apply("engine", node::ProcessStarted{start.instance, process, "token"});
        node::SessionOpened opened;
        opened.instance = start.instance;
        opened.process = process;
        played.apply("engine", opened);
        node::EngineStateChanged ready;
        ready.instance = start.instance;
        ready.state = node::EngineState::kReady;
        ready.grant_bytes = start.grant_bytes;
        played.apply("engine", ready);
    }
    void operator()(const node::TerminateProcess& to) const {
        played.apply("engine",
                     node::ProcessExited{to.instance, to.process, true, "exit code 0", ""});
    }
    void operator()(const node::KillProcess& to) const {
        played.apply("engine",
                     node::ProcessExited{to.instance, to.process, false, "killed by SIGKILL", ""});
    }
    void operator()(const node::SendCommand& command) const {
        uint64_t& mapped = played.mapped_[command.instance];
        if (command.kind != node::CommandKind::kPause &&
            command.kind != node::CommandKind::kResume && command.kind != node::CommandKind::kStop)
            mapped = command.grant_bytes;
        node::CommandDone done;
        done.instance = command.instance;
        done.command = command.command;
        done.grant_bytes = mapped;
        played.apply("engine", done);
        if (command.kind == node::CommandKind::kStop)
            played.apply("engine",
                         node::ProcessExited{command.instance, {}, true, "exit code 0", ""});
    }
    void operator()(const node::ConfirmBytes& confirm) const {
        played.apply("engine",
                     node::BytesConfirmed{confirm.instance, played.mapped_[confirm.instance],
                                          confirm.process});
    }
    void operator()(const node::ArmTimer& timer) const { played.timers_[timer.timer] = timer.at; }
    void operator()(const node::CancelTimer& timer) const { played.timers_.erase(timer.timer); }
};

Result<std::unique_ptr<PlayedNode>> PlayedNode::fill(const NodeShape& shape) {
    std::unique_ptr<PlayedNode> played(new PlayedNode);
    for (size_t n = 0; n < shape.devices; ++n)
        played->apply("device", node::DeviceSeen{node::DeviceId(fmt::format("GPU-{}", n)),
                                                 DeviceKind::kCuda, "GPU", 140 * kGi});
    BERTH_ASSIGN(policies::Documents documents,
                 policies::parse_documents(documents_text(shape), "bench.yaml"));
    BERTH_TRY(played->happens("policy", node::DocumentsApplied{std::move(documents)}));
    BERTH_TRY(played->pass(std::chrono::minutes(1)));
    return played;
}

void PlayedNode::apply(const char* what, const node::Event& event) {
    now_ += std::chrono::microseconds(100);
    const double began = thread_ms();
    std::vector<node::Action> actions = node::apply(state_, event, now_);
    times_[what].push_back(thread_ms() - began);
    std::ranges::move(actions, std::back_inserter(to_do_));
}

Status PlayedNode::settle() {
    for (size_t steps = 0; !to_do_.empty(); ++steps) {
        if (steps >= kStepsMax)
            return fail(ErrorCode::kInternal,
                        fmt::format("the node does not come to rest: after {} actions the next is "
                                    "'{}'",
                                    steps, node::describe(to_do_.front())));
        const node::Action action = std::move(to_do_.front());
        to_do_.pop_front();
        std::visit(Answer{*this}, action);
    }
    return {};
}

Status PlayedNode::happens(const char* what, node::Event event) {
    apply(what, event);
    return settle();
}

Status PlayedNode::pass(Nanoseconds duration) {
    const node::TimePoint until = now_ + duration;
    auto sooner = [](const auto& a, const auto& b) { return a.second < b.second; };
    for (size_t fired = 0; fired < kStepsMax; ++fired) {
        const auto next = std::ranges::min_element(timers_, sooner);
        if (next == timers_.end() || next->second > until)
            break;
        now_ = std::max(now_, next->second);
        const node::TimerId timer = next->first;
        timers_.erase(next);
        BERTH_TRY(happens("timer", node::DeadlineExpired{timer}));
    }
    now_ = std::max(now_, until);
    return {};
}

Status PlayedNode::end(const node::InstanceName& name, bool clean) {
    return happens(clean ? "end" : "death",
                   node::ProcessExited{name, {}, clean, clean ? "exit code 0" : "exit code 3", ""});
}

PlayedNode::Times PlayedNode::take_times() {
    return std::exchange(times_, {});
}

} // namespace berth::cli::bench
