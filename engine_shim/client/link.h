// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/packet_socket.h"
#include "engine_shim/protocol/messages.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace berth {

// What a Link asks of and tells its owner; always on the link's thread, and under its lock report()
// alone, which must not call back.
// `epoch` counts connections: ids of commands mean something on their own connection only.
class LinkListener {
  public:
    LinkListener() = default;
    LinkListener(const LinkListener&) = delete;
    LinkListener& operator=(const LinkListener&) = delete;
    virtual ~LinkListener() = default;
    virtual protocol::Hello hello() = 0;
    virtual std::vector<int> hello_fds() = 0; // that go with it; stay open
    virtual protocol::Report report() = 0;
    virtual Status on_welcome(protocol::Welcome welcome, UniqueFd gate) = 0;
    virtual void on_up(uint64_t epoch) = 0; // messages posted from here on arrive
    virtual void on_command(protocol::Command command, uint64_t epoch) = 0;
    virtual void on_tick() = 0; // about once a second, connected or not
};

// The connection to berthd and the thread that keeps it: greets, receives, sends what was posted,
// reports once a second, and connects again with back-off (20 ms to 1 s; 10 s once berthd has
// refused us) for as long as it lives. All calls are thread-safe; request() and wait_up() block.
// The listener outlives the link.
class Link {
  public:
    Link(std::string socket_path, LinkListener& listener);
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    ~Link(); // sends what is posted (half a second at most), then closes

    Status start();
    // Ends the thread and the connection for good; nothing arrives from here on.
    void stop();

    // Waits until berthd has said welcome. Its refusal (`refused` in attempt()) ends the wait
    // early.
    Status wait_up(Deadline deadline);
    // How the latest attempt to connect failed; nothing while it is up or none has ended.
    struct Attempt {
        Error error;
        bool refused = false; // berthd answered, and the answer was no
    };
    std::optional<Attempt> attempt();
    // Waits for the outcome of an attempt that the caller has not seen, at most until `deadline`;
    // true when up. `seen` counts attempts and starts at 0.
    bool wait_attempt(Deadline deadline, uint64_t& seen);

    // Sends when the connection of that epoch (0: any) is up; otherwise drops it: false.
    bool post(protocol::Message message, uint64_t epoch = 0);
    void report_soon();

    struct Reply {
        protocol::Attached attached; // id 0: the answer was go
        std::vector<UniqueFd> fds;
    };
    // One request (attach, publish, sealed, private_load) on the present connection; `fds` go
    // along. Sets `lost` when the connection went away before the answer, so that it is worth
    // asking again. `progress` runs on the caller's thread.
    Result<Reply> request(protocol::Message message, const std::vector<int>& fds,
                          const std::function<void(const protocol::Progress&)>& progress,
                          bool& lost);

  private:
    // Announcing: welcomed, and the listener says what this engine holds, before anybody's request.
    enum class Phase { kDown, kGreeting, kAnnouncing, kUp };
    struct Outgoing {
        std::string payload;
        std::vector<UniqueFd> fds;
        std::vector<int> borrowed{}; // instead of fds: somebody else's
        std::vector<int> numbers() const {
            std::vector<int> all = borrowed;
            for (const UniqueFd& fd : fds)
                all.push_back(fd.get());
            return all;
        }
    };
    struct Pending {
        std::deque<protocol::Progress> progress;
        std::optional<Result<Reply>> answer;
        bool lost = false;
    };

    void run();
    void connect_step();
    void poll_step();
    void post_report();
    bool takes_posts_locked() const { return phase_ == Phase::kAnnouncing || phase_ == Phase::kUp; }
    bool has_room_locked() const;
    bool flush(); // false: the connection is gone
    bool receive_all();
    bool handle(protocol::Received received);
    bool greet(protocol::Received received);
    void answer(uint64_t id, Result<Reply> reply);
    void go_down(Error error, bool refused);
    void pause_thread(Nanoseconds timeout); // until wake() or timeout
    void wake();
    bool stopping();
    void finish();

    const std::string socket_path_;
    LinkListener& listener_;

    // The link's thread alone; others may send on it while they hold mutex_ and phase_ is kUp.
    UniqueFd socket_;
    uint64_t hello_id_ = 0;
    Nanoseconds backoff_;
    Deadline report_due_;
    Deadline greet_until_;

    UniqueFd wake_fd_;
    // Guards all below; no other lock is taken while it is held.
    std::mutex mutex_;
    std::condition_variable changed_;
    Phase phase_ = Phase::kDown;
    uint64_t epoch_ = 0;
    uint64_t attempts_ = 0;
    uint64_t next_id_ = 1;
    std::optional<Attempt> attempt_;
    std::deque<Outgoing> outbox_;
    std::map<uint64_t, Pending*> pending_;
    bool report_soon_ = false;
    bool stop_ = false;
    std::thread thread_;
};

} // namespace berth
