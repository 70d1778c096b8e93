// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/link.h"

#include "base/descriptors.h"
#include "base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace berth {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Nanoseconds kBackoffMin = milliseconds(20);
constexpr Nanoseconds kBackoffMax = seconds(1);
constexpr Nanoseconds kBackoffRefused = seconds(10);
constexpr Nanoseconds kGreetTimeout = seconds(10);
constexpr Nanoseconds kReportEvery = seconds(1);
constexpr Nanoseconds kFinish = milliseconds(500);
constexpr size_t kProgressMax = 64;

Deadline now() {
    return std::chrono::steady_clock::now();
}

int poll_timeout(Nanoseconds timeout) {
    auto left = std::chrono::ceil<milliseconds>(timeout).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

} // namespace

Link::Link(std::string socket_path, LinkListener& listener)
    : socket_path_(std::move(socket_path)), listener_(listener), backoff_(kBackoffMin) {}

Link::~Link() {
    stop();
}

void Link::stop() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) {
        wake();
        thread_.join();
    }
}

Status Link::start() {
    wake_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_fd_)
        return fail_errno("eventfd");
    // The engine's signals are its own: none is delivered to this thread.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
}

void Link::wake() {
    uint64_t one = 1;
    (void)!::write(wake_fd_.get(), &one, sizeof one);
}

bool Link::stopping() {
    std::lock_guard lock(mutex_);
    return stop_;
}

void Link::run() {
    report_due_ = now() + kReportEvery;
    while (!stopping()) {
        if (!socket_)
            connect_step();
        else
            poll_step();
        if (now() >= report_due_) {
            report_due_ = now() + kReportEvery;
            listener_.on_tick();
            post_report();
        }
    }
    finish();
}

void Link::connect_step() {
    auto socket = connect_packets(socket_path_);
    if (!socket) {
        go_down(socket.error(), false);
        return;
    }
    socket_ = to_high_number(std::move(*socket)); // berthd hears of this process's end by it
    greet_until_ = now() + kGreetTimeout;
    protocol::Hello hello = listener_.hello();
    std::vector<int> fds = listener_.hello_fds();
    std::lock_guard lock(mutex_);
    phase_ = Phase::kGreeting;
    hello_id_ = next_id_++;
    hello.id = hello_id_;
    outbox_.push_back({encode(hello), {}, std::move(fds)});
}

void Link::poll_step() {
    bool greeting = false;
    {
        std::lock_guard lock(mutex_);
        greeting = phase_ == Phase::kGreeting;
    }
    if (greeting && now() > greet_until_)
        return go_down(Error{ErrorCode::kDeadlineExceeded,
                             fmt::format("{}: berthd took the connection and did not answer in {}",
                                         socket_path_, format_duration(kGreetTimeout)),
                             {},
                             0},
                       false);
    if (!flush())
        return;
    bool unsent = false;
    {
        std::lock_guard lock(mutex_);
        unsent = !outbox_.empty();
    }
    pollfd waiting[2] = {
        {socket_.get(), static_cast<short>(POLLIN | (unsent ? POLLOUT : 0)), 0},
        {wake_fd_.get(), POLLIN, 0},
    };
    if (::poll(waiting, 2, poll_timeout(report_due_ - now())) < 0 && errno != EINTR)
        log::warn("waiting for berthd: poll gave errno={}", errno);
    pause_thread(Nanoseconds(0));
    if (waiting[0].revents != 0 && !receive_all())
        return;
    bool report = false;
    {
        std::lock_guard lock(mutex_);
        std::swap(report, report_soon_);
    }
    if (report)
        post_report();
}

bool Link::flush() {
    for (;;) {
        const Outgoing* next = nullptr; // stays: this thread alone takes from the front
        {
            std::lock_guard lock(mutex_);
            if (outbox_.empty())
                return true;
            next = &outbox_.front();
        }
        auto sent = send_packet_nowait(socket_.get(), next->payload, next->numbers());
        if (!sent && sent.error().code == ErrorCode::kInternal) {
            log::warn("a message to berthd is too large, ignoring it: {}", sent.error().message);
        } else if (!sent) {
            // What berthd said before it went away (a refusal, say) is worth more than EPIPE.
            if (receive_all())
                go_down(sent.error(), false);
            return false;
        } else if (!*sent) {
            return true;
        }
        std::lock_guard lock(mutex_);
        outbox_.pop_front();
    }
}

bool Link::receive_all() {
    for (;;) {
        Packet packet;
        auto got = receive_packet_nowait(socket_.get(), packet);
        if (!got) {
            go_down(got.error(), false);
            return false;
        }
        if (!*got)
            return true;
        auto message = protocol::decode(packet.payload);
        if (!message) {
            log::warn("ignoring a message from berthd: {}", message.error().message);
            continue;
        }
        if (!handle({std::move(*message), std::move(packet.fds)}))
            return false;
    }
}

bool Link::handle(protocol::Received received) {
    bool greeting = false;
    uint64_t epoch = 0;
    {
        std::lock_guard lock(mutex_);
        greeting = phase_ == Phase::kGreeting;
        epoch = epoch_;
    }
    if (greeting)
        return greet(std::move(received));
    if (auto* command = std::get_if<protocol::Command>(&received.message)) {
        listener_.on_command(std::move(*command), epoch);
    } else if (auto* progress = std::get_if<protocol::Progress>(&received.message)) {
        std::lock_guard lock(mutex_);
        auto found = pending_.find(progress->id);
        if (found != pending_.end()) {
            auto& list = found->second->progress;
            if (list.size() == kProgressMax)
                list.pop_front();
            list.push_back(std::move(*progress));
            changed_.notify_all();
        }
    } else if (auto* attached = std::get_if<protocol::Attached>(&received.message)) {
        uint64_t id = attached->id;
        answer(id, Reply{std::move(*attached), std::move(received.fds)});
    } else if (auto* welcome = std::get_if<protocol::Welcome>(&received.message)) {
        UniqueFd gate = received.fds.empty() ? UniqueFd() : std::move(received.fds.front());
        (void)listener_.on_welcome(std::move(*welcome), std::move(gate));
    } else if (auto* go = std::get_if<protocol::Go>(&received.message)) {
        answer(go->id, Reply{});
    } else if (auto* failed = std::get_if<protocol::Failed>(&received.message)) {
        answer(failed->id, fail(std::move(failed->error)));
    } else {
        log::warn("ignoring an unexpected message from berthd: {:.200}", encode(received.message));
    }
    return true;
}

bool Link::greet(protocol::Received received) {
    if (auto* failed = std::get_if<protocol::Failed>(&received.message)) {
        go_down(failed->error, true);
        return false;
    }
    auto* welcome = std::get_if<protocol::Welcome>(&received.message);
    if (welcome == nullptr || welcome->id != hello_id_) {
        log::warn("ignoring a message from berthd before its welcome");
        return true;
    }
    UniqueFd gate = received.fds.empty() ? UniqueFd() : std::move(received.fds.front());
    if (Status taken = listener_.on_welcome(std::move(*welcome), std::move(gate)); !taken) {
        go_down(taken.error(), true);
        return false;
    }
    uint64_t epoch = 0;
    {
        std::lock_guard lock(mutex_);
        phase_ = Phase::kAnnouncing;
        epoch = ++epoch_;
        backoff_ = kBackoffMin;
    }
    listener_.on_up(epoch);
    std::lock_guard lock(mutex_);
    phase_ = Phase::kUp;
    attempt_.reset();
    ++attempts_;
    changed_.notify_all();
    return true;
}

void Link::answer(uint64_t id, Result<Reply> reply) {
    std::lock_guard lock(mutex_);
    auto found = pending_.find(id);
    if (found == pending_.end()) {
        log::debug("an answer from berthd that nobody waits for, id={}", id);
        return;
    }
    found->second->answer = std::move(reply);
    changed_.notify_all();
}

void Link::go_down(Error error, bool refused) {
    Nanoseconds pause = kBackoffMin;
    bool first = false;
    {
        std::lock_guard lock(mutex_);
        socket_.reset(); // under the lock: request() may be sending
        // One line when it is lost or refused, not one per attempt.
        first = phase_ == Phase::kUp || (refused && !(attempt_ && attempt_->refused));
        phase_ = Phase::kDown;
        outbox_.clear();
        for (auto& [id, pending] : pending_)
            if (!pending->answer) {
                pending->lost = true;
                pending->answer = fail(error);
            }
        attempt_ = Attempt{error, refused};
        ++attempts_;
        pause = refused ? kBackoffRefused : backoff_;
        backoff_ = std::min(backoff_ * 2, kBackoffMax);
        changed_.notify_all();
    }
    if (first && refused)
        log::warn("berthd refused this engine, asking again every {}: {}",
                  format_duration(kBackoffRefused), error.message);
    else if (first)
        log::info("the connection to berthd is lost, serving on and connecting again: {}",
                  error.message);
    Deadline until = now() + pause;
    while (!stopping() && now() < until) {
        pause_thread(std::min<Nanoseconds>(until - now(), report_due_ - now()));
        if (now() >= report_due_) {
            report_due_ = now() + kReportEvery;
            listener_.on_tick();
        }
    }
}

void Link::pause_thread(Nanoseconds timeout) {
    pollfd waiting{wake_fd_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, poll_timeout(timeout)) > 0) {
        uint64_t count = 0;
        (void)!::read(wake_fd_.get(), &count, sizeof count);
    }
}

void Link::finish() {
    Deadline until = now() + kFinish;
    while (socket_ && now() < until) {
        {
            std::lock_guard lock(mutex_);
            if (outbox_.empty() || phase_ != Phase::kUp)
                break;
        }
        if (!flush())
            break;
        pollfd waiting{socket_.get(), POLLOUT, 0};
        ::poll(&waiting, 1, poll_timeout(until - now()));
    }
    socket_.reset();
}

} // namespace berth
