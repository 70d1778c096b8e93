// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/mps_daemon.h"

#include "base/log.h"
#include "base/unique_fd.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <poll.h>

namespace berth {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kStartTime{10};
constexpr std::chrono::seconds kIdleLook{5};

bool has_ended(const Process& process, milliseconds patience) {
    pollfd ended{process.pidfd(), POLLIN, 0};
    return ::poll(&ended, 1, static_cast<int>(patience.count())) == 1;
}

} // namespace

MpsDaemon::MpsDaemon(boost::asio::io_context& context, Settings settings,
                     std::function<void()> changed)
    : context_(context), settings_(std::move(settings)), changed_(std::move(changed)),
      worker_(context, 1) {}

void MpsDaemon::stop() {
    worker_.stop();
    watch_ = {};
    again_.cancel();
}

std::map<std::string, std::string> MpsDaemon::environment(double share) const {
    std::map<std::string, std::string> variables{
        {"CUDA_MPS_PIPE_DIRECTORY", settings_.pipe_directory},
        {"CUDA_MPS_LOG_DIRECTORY", settings_.log_directory}};
    const long percentage = std::clamp(std::lround(share * 100), 1L, 100L);
    if (percentage < 100)
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = std::to_string(percentage);
    return variables;
}

void MpsDaemon::want(bool wanted) {
    if (wanted == wanted_)
        return;
    wanted_ = wanted;
    if (wanted && !settings_.has_gpu)
        return settle(State::kFailed, "this node has no NVIDIA GPU");
    if (wanted && state_ != State::kReady)
        return start();
    if (wanted || state_ == State::kStarting)
        return; // what is being started is looked at when it is there
    if (state_ == State::kReady)
        return end_when_idle();
    settle(State::kOff, "");
}

void MpsDaemon::settle(State state, std::string why) {
    const bool was_ready = ready(), was_starting = is_starting();
    state_ = state;
    why_ = std::move(why);
    if (was_starting || was_ready != ready() || state == State::kFailed)
        changed_();
}

void MpsDaemon::start() {
    if (state_ == State::kStarting)
        return;
    state_ = State::kStarting;
    why_ = "its control daemon is being started";
    worker_.run([settings = settings_] { return find_or_start(settings); },
                [this](Result<Found> found) { took(std::move(found)); });
}

// One that an earlier berthd has started is found by the pid that it has left.
Result<MpsDaemon::Found> MpsDaemon::find_or_start(const Settings& settings) {
    BERTH_TRY(make_directories(settings.pipe_directory, 0755)); // other users' engines, too
    BERTH_TRY(make_directories(settings.log_directory, 0755));
    if (const auto pid = mps_daemon_pid(settings.pipe_directory))
        if (const auto id = process_id(*pid))
            if (auto process = Process::adopt(*id))
                if (mps_servers(settings.pipe_directory, settings.program))
                    return Found{std::move(*process), false};
    SpawnOptions options;
    options.command = {settings.program, "-f"};
    options.environment["CUDA_MPS_PIPE_DIRECTORY"] = settings.pipe_directory;
    options.environment["CUDA_MPS_LOG_DIRECTORY"] = settings.log_directory;
    options.log_path = settings.log_directory + "/berth-mps-control.log";
    BERTH_ASSIGN(Process process, Process::spawn(options));
    const auto deadline = steady_clock::now() + kStartTime;
    Error last{ErrorCode::kDeadlineExceeded, "it has not answered", "MpsSilent", 0};
    while (steady_clock::now() < deadline) {
        if (has_ended(process, milliseconds(50)))
            return fail(ErrorCode::kUnavailable,
                        fmt::format("{} ended at once ({}); its log: {}", settings.program,
                                    describe_exit(process.try_wait().value_or(kUnknownWaitStatus)),
                                    options.log_path),
                        "MpsEnded");
        if (!mps_daemon_pid(settings.pipe_directory))
            continue;
        auto servers = mps_servers(settings.pipe_directory, settings.program);
        if (servers)
            return Found{std::move(process), true};
        last = servers.error();
    }
    (void)process.signal_group(SIGKILL);
    (void)has_ended(process, milliseconds(1000));
    (void)process.try_wait();
    return fail(
        ErrorCode::kDeadlineExceeded,
        fmt::format("{} was started and is not to be had: {}", settings.program, last.message),
        "MpsSilent");
}

void MpsDaemon::took(Result<Found> found) {
    if (!found) {
        log::warn("mps: {}; the node shares by its gates", found.error().message);
        return settle(wanted_ ? State::kFailed : State::kOff, found.error().message);
    }
    process_ = std::move(found->process);
    log::info("mps pid={} {} pipes={}", process_.id().pid, found->started ? "started" : "found",
              settings_.pipe_directory);
    if (auto watch = FdWatch::open(context_, process_.pidfd(), [this] { ended(); }))
        watch_ = std::move(*watch);
    settle(State::kReady, "");
    if (!wanted_)
        end_when_idle();
}

void MpsDaemon::ended() {
    (void)process_.try_wait();
    process_ = {};
    watch_ = {};
    if (!wanted_)
        return settle(State::kOff, "");
    log::warn("mps: its control daemon has ended; the node shares by its gates");
    settle(State::kFailed, "its control daemon has ended; engines that were its clients may fail");
}

// With clients it stays: they would end with it.
void MpsDaemon::end_when_idle() {
    worker_.run(
        [settings = settings_] {
            return quit_mps_unless_used(settings.pipe_directory, settings.program);
        },
        [this](const Result<bool>& quitting) {
            if (wanted_ || !ready())
                return;
            if (!quitting)
                log::warn("mps: {}; asking it to end again later", quitting.error().message);
            again_.set(context_, kIdleLook, [this] {
                if (!wanted_ && ready())
                    end_when_idle();
            });
        });
}

} // namespace berth
