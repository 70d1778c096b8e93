// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/act/alarm.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/fork_rules.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace berth {

// The zygote (engine_shim/zygote) and the starts that are asked of it. It is executed when an
// engine is expected or first started, ends with berthd, and is executed anew, after a pause that
// grows, when it dies, stands still or must not be forked any more. Nothing here is needed for a
// start: whoever is told that a fork is not possible, or has failed, starts by exec. Thread rule:
// the io_context's one thread; nothing waits (its own start is a fork and an exec, about two
// milliseconds). Dropping it ends the zygote, and no engine.
class ZygoteLink {
  public:
    struct Settings {
        std::string off;     // not empty: there is none, and this is why
        std::string program; // berth-engine
        std::string log_path;
        bool with_gpu = false; // engines here need a GPU's libraries
    };
    // A process that is this process's child and waits to be let go; dropped, it ends.
    struct Newborn {
        Process process;
        UniqueFd waiting;
        void let_go() const;
    };
    using Then = std::function<void(Result<Newborn>)>;

    ZygoteLink(boost::asio::io_context& context, Settings settings);
    ZygoteLink(const ZygoteLink&) = delete;
    ZygoteLink& operator=(const ZygoteLink&) = delete;
    ~ZygoteLink() { stop(); }
    void stop();

    // Whether that command is the program that the zygote is: what expect() is worth for.
    bool is_program(const std::string& path) const;
    // An engine may be started before long: executes the zygote soon, if there is none.
    void expect();
    // Why this start has to be by exec; nothing: fork() may be tried. Where only a zygote is
    // missing, one is expected from then on.
    std::optional<std::string> why_not(const SpawnOptions& options);
    // Calls back once, maybe before it returns, with the new process or why there is none.
    void fork(const SpawnOptions& options, Then then);
    // One that is not wanted any more: it ends, and is reaped.
    void discard(Newborn born);

    struct Report {
        std::string state; // off, absent, starting, ready, unfit
        std::string why;   // of all but ready
        int pid = 0;
        uint64_t forks = 0;
        uint64_t restarts = 0;
        double start_ms = 0; // from its exec until it was ready
    };
    Report report() const;

  private:
    enum class State { kOff, kAbsent, kStarting, kReady, kUnfit };
    struct Pending { // a fork that was asked for
        UniqueFd answer;
        FdWatch watch;
        std::unique_ptr<boost::asio::steady_timer> deadline;
        Then then;
    };
    struct GivenUp { // one that was not waited for: whatever comes of it is reaped
        UniqueFd answer;
        Process process;
        FdWatch watch;
    };
    void start_after(std::chrono::milliseconds pause);
    void start_later(const std::string& what);
    void start();
    Status execute();
    void listen();
    void told();
    bool hear();
    void ended();
    void end_it();
    Result<UniqueFd> ask(const SpawnOptions& options);
    void await(uint64_t id);
    void answered(uint64_t id);
    void finish(uint64_t id, Result<Newborn> born);
    void give_up(uint64_t id);
    void look_at(std::list<GivenUp>::iterator one);

    boost::asio::io_context& context_;
    const Settings settings_;
    State state_ = State::kAbsent;
    std::string why_;
    std::chrono::milliseconds pause_{0};
    Alarm again_;
    FileIdentity identity_; // of what it executed
    std::vector<std::string> environment_;
    Process process_;
    UniqueFd socket_;
    FdWatch socket_watch_;
    FdWatch end_watch_;
    std::chrono::steady_clock::time_point executed_;
    uint64_t next_id_ = 1;
    std::map<uint64_t, Pending> pending_;
    std::list<GivenUp> given_up_;
    uint64_t forks_ = 0;
    uint64_t executions_ = 0;
    double start_ms_ = 0;
};

} // namespace berth
