// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/act/alarm.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/mps_control.h"
#include "scheduler/act/worker_pool.h"

#include <functional>
#include <map>
#include <string>

namespace berth {

// The control daemon of CUDA MPS, where `sharing.compute: MPS` asks for one: started under a pipe
// directory of this node's own, found again by a later berthd, and ended once nobody wants it and
// it has no client. It lives on when berthd ends, as its clients do. Where it cannot be had, the
// node shares by its gates, and why() says why.
//
// Thread rule: the decision thread; the control program, which may take seconds, runs on a worker.
class MpsDaemon {
  public:
    struct Settings {
        std::string pipe_directory;
        std::string log_directory;
        std::string program = kMpsControl; // for tests: another
        bool has_gpu = false;
    };
    // `changed` is called when ready() has, and whenever a start has come out, one way or the
    // other: engines wait for that.
    MpsDaemon(boost::asio::io_context& context, Settings settings, std::function<void()> changed);
    ~MpsDaemon() { stop(); }
    void stop(); // no more outcomes; the daemon goes on

    // By the policy. What has failed is tried again when it was not wanted in between.
    void want(bool wanted);
    bool wanted() const { return wanted_; }
    bool is_starting() const { return state_ == State::kStarting; }
    bool ready() const { return state_ == State::kReady; }
    // Of one that is wanted and not ready.
    const std::string& why() const { return why_; }
    const std::string& pipe_directory() const { return settings_.pipe_directory; }

    // What makes a process its client; `share` of the multiprocessors, 1: all.
    std::map<std::string, std::string> environment(double share) const;

  private:
    enum class State { kOff, kStarting, kReady, kFailed };
    struct Found {
        Process process;
        bool started = false; // by this call
    };
    static Result<Found> find_or_start(const Settings& settings);
    void start();
    void took(Result<Found> found);
    void ended();
    void end_when_idle();
    void settle(State state, std::string why);

    boost::asio::io_context& context_;
    const Settings settings_;
    std::function<void()> changed_;
    State state_ = State::kOff;
    bool wanted_ = false;
    std::string why_;
    Process process_;
    FdWatch watch_;
    Alarm again_;
    WorkerPool worker_; // last: its results come back to the members above
};

} // namespace berth
