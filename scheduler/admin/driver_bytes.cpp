// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/driver_bytes.h"

#include "cache/memory/host_meter.h"
#include "scheduler/admin/wait.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace berth {

namespace asio = boost::asio;
using std::chrono::steady_clock;

namespace {

// What the driver and the kernel are asked for, copied for a worker.
struct BytesQuestion {
    std::shared_ptr<const Nvml> nvml;
    std::vector<std::string> gpus;
    struct Host {
        uint64_t weight_bytes = 0;
        std::vector<int> pids;
    };
    std::map<std::string, Host> hosts;
};

BytesQuestion bytes_question(const NodeContext& context) {
    BytesQuestion question;
    question.nvml = context.nvml;
    for (const auto& [id, environment] : context.environments) {
        if (environment.device_kind == "cuda")
            question.gpus.push_back(id.value);
        else
            question.hosts[id.value].weight_bytes = context.catalogue.bytes_on(id.value);
    }
    for (const auto& [name, instance] : context.state().instances)
        for (uint32_t rank = 0; rank < instance.ranks && rank < instance.devices.size(); ++rank)
            if (const int pid = instance.rank_process(rank).process.pid; pid != 0)
                if (auto host = question.hosts.find(instance.devices[rank].value);
                    host != question.hosts.end())
                    host->second.pids.push_back(pid);
    return question;
}

views::DriverBytes ask_bytes(const BytesQuestion& question) {
    views::DriverBytes bytes;
    if (question.nvml != nullptr)
        for (const std::string& gpu : question.gpus)
            if (auto memory = question.nvml->memory(gpu))
                bytes[gpu] = memory->used_bytes;
    for (const auto& [id, host] : question.hosts) {
        bytes[id] = host.weight_bytes;
        for (int pid : host.pids)
            if (auto usage = host_usage(pid))
                bytes[id] += usage->grant_bytes;
    }
    return bytes;
}

// Another number when bytes that the ledger knows of have come or gone.
uint64_t stamp_of(const NodeContext& context) {
    uint64_t stamp = 14'695'981'039'346'656'037U;
    auto mix = [&stamp](uint64_t number) { stamp = (stamp ^ number) * 1'099'511'628'211U; };
    const node::NodeState& state = context.state();
    for (const auto& [name, instance] : state.instances) {
        mix(static_cast<uint64_t>(instance.process.pid));
        mix(instance.grant_bytes);
        mix(static_cast<uint64_t>(instance.grant_state));
    }
    for (const auto& [key, set] : state.weights)
        mix(set.bytes);
    for (const auto& [id, load] : state.loads)
        mix(static_cast<uint64_t>(load.state));
    mix(context.catalogue.size());
    return stamp;
}

} // namespace

// However the one who asks ends, the next one may.
class DriverFigures::Turn {
  public:
    explicit Turn(DriverFigures& figures) : figures_(figures) { figures_.is_asking_ = true; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
        figures_.is_asking_ = false;
        figures_.answered_.notify();
    }

  private:
    DriverFigures& figures_;
};

bool DriverFigures::holds(const std::optional<Answer>& answer, uint64_t stamp) const {
    return answer && answer->stamp == stamp && steady_clock::now() - answer->asked < kGoodFor;
}

asio::awaitable<views::DriverBytes> DriverFigures::now() {
    uint64_t stamp = stamp_of(context_);
    while (!holds(last_, stamp)) {
        if (is_asking_) {
            Signal::Waiter waiter = answered_.waiter(steady_clock::time_point::max());
            co_await wait_on(waiter);
            stamp = stamp_of(context_);
            continue;
        }
        Turn turn(*this);
        Answer answer;
        answer.stamp = stamp;
        answer.asked = steady_clock::now();
        auto ask = [question = bytes_question(context_)] { return ask_bytes(question); };
        answer.bytes = co_await run_on(context_.io, workers_, ask);
        last_ = std::move(answer);
        co_return last_->bytes;
    }
    co_return last_->bytes;
}

} // namespace berth
