// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/device.h"
#include "scheduler/cli/bench/cycles/node.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/node_calls.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include <sys/resource.h>

// What goes wrong in between; each is over when all is as it was.
namespace berth::cli::bench {

namespace {

constexpr std::chrono::milliseconds kLookEvery{5};
constexpr std::chrono::seconds kBackMax{120};
constexpr uint64_t kHogLeaves = uint64_t{128} << 20; // less than any grant
constexpr rlim_t kPageBytes = 4096;

} // namespace

Result<ProcessId> CyclesNode::signal(const char* instance, int number) const {
    BERTH_ASSIGN(const json::object shown, instance_of(node_->client(), instance));
    BERTH_ASSIGN(const ProcessId id, process_id(static_cast<int>(number_at(shown, "pid"))));
    BERTH_ASSIGN(const Process process, Process::adopt(id));
    BERTH_TRY(process.signal(number));
    return id;
}

Status CyclesNode::kill_and_wait(const char* instance) const {
    BERTH_ASSIGN(const ProcessId killed, signal(instance, SIGKILL));
    for (const auto began = Clock::now(); Clock::now() - began < kBackMax;
         pause_between_looks(kLookEvery)) {
        BERTH_ASSIGN(const json::object shown, instance_of(node_->client(), instance));
        if (text_at(shown, "state") == "Running" &&
            number_at(shown, "pid") != static_cast<uint64_t>(killed.pid))
            return {};
    }
    return fail(ErrorCode::kDeadlineExceeded,
                fmt::format("instance '{}' is not back {} s after pid {} was killed", instance,
                            kBackMax.count(), killed.pid));
}

// Both engines are known to the berthd that runs now.
Status CyclesNode::wait_connected() const {
    for (const char* name : {kOnline, kBatch})
        for (const auto began = Clock::now();; pause_between_looks(kLookEvery)) {
            BERTH_ASSIGN(const json::object shown, instance_of(node_->client(), name));
            const json::value* connected = shown.if_contains("connected");
            if (connected != nullptr && connected->is_bool() && connected->get_bool())
                break;
            if (Clock::now() - began > kBackMax)
                return fail(ErrorCode::kDeadlineExceeded,
                            fmt::format("'{}' has not come back to the new berthd", name));
        }
    return {};
}

Result<double> CyclesNode::suffer(FaultKind kind) {
    const auto began = Clock::now();
    switch (kind) {
    case FaultKind::kBatchKilled:
        BERTH_TRY(kill_and_wait(kBatch));
        break;
    case FaultKind::kOnlineKilled:
        BERTH_TRY(kill_and_wait(kOnline));
        break;
    case FaultKind::kDaemonKilled:
        BERTH_TRY(node_->restart());
        BERTH_TRY(wait_connected());
        break;
    case FaultKind::kBatchStuck:
        return batch_stuck();
    case FaultKind::kGrantRefused:
        return grant_refused();
    }
    return milliseconds_since(began);
}

// It takes no command any more, as with a kernel that does not end: what it holds is had by force.
Result<double> CyclesNode::batch_stuck() {
    const auto began = Clock::now();
    BERTH_ASSIGN(const ProcessId stuck, signal(kBatch, SIGSTOP));
    BERTH_TRY(preempt("Offload", 0));
    if (is_alive(stuck))
        return fail(ErrorCode::kInternal,
                    fmt::format("the stuck engine, pid {}, is still there though its memory was "
                                "said to be free",
                                stuck.pid));
    BERTH_TRY(resume_batch());
    return milliseconds_since(began);
}

// Somebody who asks nobody has taken the memory that it would come back to: on a GPU this process,
// on the host the kernel, which gives the engine no more for a while.
Result<double> CyclesNode::grant_refused() {
    const auto began = Clock::now();
    BERTH_TRY(preempt("Offload", 0));
    BERTH_ASSIGN(const json::object parked, instance_of(node_->client(), kBatch));
    BERTH_ASSIGN(const bool refused, resume_is_refused(parked));
    if (!refused)
        return fail(ErrorCode::kInternal,
                    "a grant was given back out of memory that somebody else had taken");
    BERTH_ASSIGN(const json::object after, instance_of(node_->client(), kBatch));
    if (number_at(after, "pid") != number_at(parked, "pid"))
        return fail(ErrorCode::kInternal,
                    fmt::format("a grant was refused and the engine, pid {}, did not live on: {}",
                                number_at(parked, "pid"), text_at(after, "message")));
    BERTH_TRY(resume_batch());
    return milliseconds_since(began);
}

Result<bool> CyclesNode::resume_is_refused(const json::object& parked) {
    const auto resume = [this] {
        return run_to_end(node_->client(), fmt::format("/v1/instances/{}:resume", kBatch), {});
    };
    if (device_.starts_with("host")) {
        const auto pid = static_cast<pid_t>(number_at(parked, "pid"));
        rlimit before{};
        if (::prlimit(pid, RLIMIT_AS, nullptr, &before) != 0)
            return fail_errno(fmt::format("asking for the limits of pid {}", pid));
        const rlimit none{kPageBytes, before.rlim_max};
        if (::prlimit(pid, RLIMIT_AS, &none, nullptr) != 0)
            return fail_errno(fmt::format("taking address space from pid {}", pid));
        const auto resumed = resume();
        if (::prlimit(pid, RLIMIT_AS, &before, nullptr) != 0)
            return fail_errno(fmt::format("giving address space back to pid {}", pid));
        return !resumed;
    }
    BERTH_ASSIGN(const std::unique_ptr<Device> device, open_device(device_));
    BERTH_ASSIGN(const DeviceMemory memory, device->memory());
    const uint64_t free = memory.total_bytes - memory.used_bytes;
    const uint64_t hog = free > kHogLeaves ? free - kHogLeaves : 0;
    BERTH_ASSIGN(const std::unique_ptr<GrantArena> arena, device->create_grant(hog));
    BERTH_TRY(arena->resize(hog / arena->step_bytes() * arena->step_bytes()));
    return !resume();
}

} // namespace berth::cli::bench
