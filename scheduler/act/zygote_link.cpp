// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/zygote_link.h"

#include "base/log.h"
#include "base/packet_socket.h"
#include "engine_shim/zygote/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace berth {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// After berthd's own start, and between its deaths, doubled each time.
constexpr milliseconds kSoon{300};
constexpr milliseconds kPauseFirst{1000};
constexpr milliseconds kPauseMax{64'000};
// A fork takes milliseconds; on a machine that has no time for it exec is not faster.
constexpr milliseconds kAnswerMax{2000};
// As many as it gets done well within that time.
constexpr size_t kPendingMax = 64;

Result<UniqueFd> memory_of(const std::string& bytes) {
    UniqueFd memory(::memfd_create("berth-start", MFD_CLOEXEC));
    if (!memory)
        return fail_errno("memfd_create");
    if (::pwrite(memory.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        return fail_errno("writing a start's request");
    return memory;
}

std::string encoded(const SpawnOptions& options) {
    zygote::Request request;
    request.argv = options.command;
    request.environment = environment_of(options);
    request.working_directory = options.working_directory;
    request.log_path = options.log_path;
    request.new_session = options.new_session;
    request.limits = zygote::own_limits();
    return zygote::encode(request);
}

} // namespace

void ZygoteLink::Newborn::let_go() const {
    (void)send_packet_nowait(waiting.get(), "go", {}); // one that is gone is seen by its pidfd
}

ZygoteLink::ZygoteLink(boost::asio::io_context& context, Settings settings)
    : context_(context), settings_(std::move(settings)) {
    if (!settings_.off.empty()) {
        state_ = State::kOff;
        why_ = settings_.off;
    } else {
        why_ = "no zygote has been started yet";
    }
}

void ZygoteLink::stop() {
    again_.cancel();
    pending_.clear();
    given_up_.clear();
    socket_watch_ = {};
    end_watch_ = {};
    socket_.reset();
    if (process_)
        (void)process_.signal(SIGKILL);
    process_ = {};
    if (state_ != State::kOff) {
        state_ = State::kUnfit;
        why_ = "berthd is stopping";
    }
}

bool ZygoteLink::is_program(const std::string& path) const {
    if (path.find('/') == std::string::npos)
        return false;
    const auto theirs = identity_of(path), ours = identity_of(settings_.program);
    return theirs && ours && *theirs == *ours;
}

void ZygoteLink::expect() {
    if (state_ == State::kAbsent && !again_.is_set())
        start_after(kSoon);
}

void ZygoteLink::start_after(milliseconds pause) {
    again_.set(context_, pause, [this] { start(); });
}

// After a pause that grows: what keeps it from living may pass, as a shortage of descriptors,
// processes or memory does.
void ZygoteLink::start_later(const std::string& what) {
    state_ = State::kAbsent;
    pause_ = std::clamp(pause_ * 2, kPauseFirst, kPauseMax);
    why_ = fmt::format("{}; the next is started {:.0f} s later", what,
                       std::chrono::duration<double>(pause_).count());
    log::warn("{}; engines start by exec until then", why_);
    start_after(pause_);
}

void ZygoteLink::start() {
    if (auto executed = execute(); !executed) {
        end_it(); // of one that cannot be watched nothing would be known; it is reaped by then
        start_later("the zygote cannot be started: " + executed.error().message);
    }
}

Status ZygoteLink::execute() {
    if (process_)
        (void)process_.try_wait(); // one that could not be watched
    process_ = {};
    socket_.reset();
    BERTH_ASSIGN(auto both, packet_pair());
    SpawnOptions options;
    options.command = zygote::command(settings_.program, settings_.with_gpu);
    options.environment["GOMP_SPINCOUNT"] = "0"; // as engines have it (launch.cpp)
    options.log_path = settings_.log_path;
    options.ends_with_parent = true;
    options.inherit_fds = {{both.second.get(), zygote::kDaemonSocket}};
    environment_ = environment_of(options);
    BERTH_ASSIGN(identity_, identity_of(settings_.program));
    options.environment[zygote::kEnvironmentRoomName] = zygote::environment_room();
    executed_ = steady_clock::now();
    BERTH_ASSIGN(process_, Process::spawn(options));
    socket_ = std::move(both.first);
    // The file that it is, not the one that lies there by now.
    if (auto it = identity_of(fmt::format("/proc/{}/exe", process_.id().pid)))
        identity_ = *it;
    BERTH_ASSIGN(end_watch_, FdWatch::open(context_, process_.pidfd(), [this] { ended(); }));
    ++executions_;
    state_ = State::kStarting;
    why_ = "the zygote is still loading its libraries";
    listen();
    return {};
}

void ZygoteLink::listen() {
    auto watch = FdWatch::open(context_, socket_.get(), [this] { told(); });
    if (watch)
        socket_watch_ = std::move(*watch);
    else
        end_it();
}

void ZygoteLink::told() {
    if (hear())
        listen();
}

// "ready", or why it cannot be one. False: it is gone, which its pidfd tells.
bool ZygoteLink::hear() {
    Packet packet;
    const auto received = receive_packet_nowait(socket_.get(), packet);
    if (!received || !*received)
        return received.has_value();
    if (packet.payload == "ready") {
        state_ = State::kReady;
        why_.clear();
        start_ms_ =
            std::chrono::duration<double, std::milli>(steady_clock::now() - executed_).count();
        log::info("zygote ready pid={} ms={:.1f}", process_.id().pid, start_ms_);
        return true;
    }
    // Another would be no better, until the program is another.
    state_ = State::kUnfit;
    why_ = "there can be no zygote: " + std::string(zygote::why_unfit(packet.payload));
    log::warn("{}; engines start by exec", why_);
    return true;
}

void ZygoteLink::ended() {
    const auto status = process_.try_wait();
    if (!status)
        return; // reaped with the next one's
    const std::string how = describe_exit(*status);
    if (state_ == State::kStarting)
        (void)hear(); // its last word
    process_ = {};
    socket_watch_ = {};
    socket_.reset();
    if (state_ == State::kUnfit)
        return;
    start_later(fmt::format("the zygote ended ({})", how));
}

void ZygoteLink::end_it() {
    if (process_)
        (void)process_.signal(SIGKILL);
}

std::optional<std::string> ZygoteLink::why_not(const SpawnOptions& options) {
    if (state_ == State::kOff)
        return why_;
    const std::string& path = options.command.front();
    const auto file = identity_of(path);
    if (path.find('/') == std::string::npos || !file || !is_program(path))
        return fmt::format("what is executed is {}, and the zygote is {}", path, settings_.program);
    SpawnOptions its;
    its.environment["GOMP_SPINCOUNT"] = "0";
    if (auto why =
            why_not_forked(options, environment_.empty() ? environment_of(its) : environment_))
        return why;
    const bool changed = executions_ > 0 && !(*file == identity_);
    if (changed && (state_ == State::kReady || state_ == State::kStarting)) {
        state_ = State::kStarting; // until its end is seen
        why_ = fmt::format("{} has changed since the zygote was started", path);
        pause_ = milliseconds(0);
        end_it();
    } else if (changed && state_ == State::kUnfit && !process_) {
        state_ = State::kAbsent;
        why_ = "the zygote is started anew: its program has changed";
    }
    if (state_ == State::kReady)
        return std::nullopt;
    const std::string why = why_;
    expect();
    return why;
}

Result<UniqueFd> ZygoteLink::ask(const SpawnOptions& options) {
    if (pending_.size() >= kPendingMax)
        return fail(ErrorCode::kUnavailable,
                    fmt::format("the zygote has {} starts to do already", pending_.size()));
    BERTH_ASSIGN(auto both, packet_pair());
    BERTH_ASSIGN(const UniqueFd memory, memory_of(encoded(options)));
    std::vector<int> fds{both.second.get(), memory.get()};
    for (const auto& [name, fd] : options.listen_fds)
        fds.push_back(fd);
    BERTH_ASSIGN(const bool sent, send_packet_nowait(socket_.get(), "start", fds));
    if (!sent)
        return fail(ErrorCode::kUnavailable, "the zygote does not read what it is asked");
    return std::move(both.first);
}

void ZygoteLink::fork(const SpawnOptions& options, Then then) {
    auto asked = ask(options);
    if (!asked)
        return then(fail(asked.error()));
    const uint64_t id = next_id_++;
    Pending& pending = pending_[id];
    pending.answer = std::move(*asked);
    pending.then = std::move(then);
    pending.deadline = std::make_unique<boost::asio::steady_timer>(context_, kAnswerMax);
    pending.deadline->async_wait([this, id](boost::system::error_code error) {
        if (!error)
            give_up(id);
    });
    await(id);
}

void ZygoteLink::await(uint64_t id) {
    Pending& pending = pending_.at(id);
    auto watch = FdWatch::open(context_, pending.answer.get(), [this, id] { answered(id); });
    if (!watch)
        return finish(id, fail(watch.error()));
    pending.watch = std::move(*watch);
}

void ZygoteLink::answered(uint64_t id) {
    const auto found = pending_.find(id);
    if (found == pending_.end())
        return;
    Packet packet;
    auto received = receive_packet_nowait(found->second.answer.get(), packet);
    if (received && !*received)
        return await(id);
    if (!received)
        return finish(id, fail(ErrorCode::kUnavailable, "the zygote ended before it answered"));
    auto answer = zygote::decode_answer(packet.payload);
    if (!answer)
        return finish(id, fail(answer.error()));
    if (answer->kind == zygote::Answer::Kind::kRefused) {
        end_it(); // it will not be able to the next time either
        return finish(id, fail(ErrorCode::kFailedPrecondition,
                               "the zygote may not be forked: " + answer->words));
    }
    auto process = Process::take_child(answer->pid);
    if (!process)
        return finish(id, fail(process.error()));
    if (answer->kind == zygote::Answer::Kind::kFailed) {
        given_up_.push_back({std::move(found->second.answer), std::move(*process), {}});
        look_at(std::prev(given_up_.end()));
        return finish(id, fail(ErrorCode::kIo, answer->words));
    }
    ++forks_;
    pause_ = milliseconds(0);
    finish(id, Newborn{std::move(*process), std::move(found->second.answer)});
}

void ZygoteLink::finish(uint64_t id, Result<Newborn> born) {
    auto node = pending_.extract(id);
    node.mapped().then(std::move(born));
}

void ZygoteLink::discard(Newborn born) {
    (void)::shutdown(born.waiting.get(), SHUT_WR);
    given_up_.push_back({std::move(born.waiting), std::move(born.process), {}});
    look_at(std::prev(given_up_.end()));
}

// It hears that it is not wanted any more; a zygote that does not answer is replaced.
void ZygoteLink::give_up(uint64_t id) {
    const auto found = pending_.find(id);
    if (found == pending_.end())
        return;
    (void)::shutdown(found->second.answer.get(), SHUT_WR);
    given_up_.push_back({std::move(found->second.answer), {}, {}});
    look_at(std::prev(given_up_.end()));
    end_it();
    finish(id,
           fail(ErrorCode::kDeadlineExceeded,
                fmt::format("the zygote has not answered within {} s", kAnswerMax.count() / 1000)));
}

// First for the number of its process, if there is one, then for that one's end.
void ZygoteLink::look_at(std::list<GivenUp>::iterator one) {
    if (!one->process) {
        Packet packet;
        auto received = receive_packet_nowait(one->answer.get(), packet);
        if (received && *received)
            if (auto answer = zygote::decode_answer(packet.payload); answer && answer->pid > 0)
                if (auto process = Process::take_child(answer->pid))
                    one->process = std::move(*process);
        if (!received || (*received && !one->process)) {
            given_up_.erase(one);
            return;
        }
    }
    if (one->process && one->process.try_wait()) {
        given_up_.erase(one);
        return;
    }
    const int fd = one->process ? one->process.pidfd() : one->answer.get();
    auto watch = FdWatch::open(context_, fd, [this, one] { look_at(one); });
    if (watch)
        one->watch = std::move(*watch);
    else
        given_up_.erase(one);
}

ZygoteLink::Report ZygoteLink::report() const {
    static constexpr const char* kNames[] = {"off", "absent", "starting", "ready", "unfit"};
    Report report;
    report.state = kNames[static_cast<size_t>(state_)];
    report.why = why_;
    report.pid = process_ ? process_.id().pid : 0;
    report.forks = forks_;
    report.restarts = executions_ > 0 ? executions_ - 1 : 0;
    report.start_ms = start_ms_;
    return report;
}

} // namespace berth
