// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "base/units.h"
#include "engine_shim/reference/ranks/note.h"
#include "engine_shim/reference/ranks/rank_store.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace berth::engine {

// Who hears what other ranks say. Called on the links' thread; must not wait for other ranks.
class RankEars {
  public:
    RankEars() = default;
    RankEars(const RankEars&) = delete;
    RankEars& operator=(const RankEars&) = delete;
    virtual ~RankEars() = default;
    virtual void on_note(uint32_t from, Note note) = 0;
};

// How all ranks must be alike, and where this one runs.
struct RankSelf {
    uint32_t rank = 0;
    uint32_t ranks = 1;
    std::string alike; // options and versions, in words
    std::string device;
};

// The connections between rank 0 and each other rank of an instance, and a thread that listens to
// them. They are there before the weights are, so that a rank that dies while others load is
// noticed too: the kernel closes its connection, and there is no other way to see it at once.
// Sending is thread-safe; whoever hears takes itself off before it ends.
class RankLinks {
  public:
    // A rank is gone: its number and why, in words. On the links' thread, once.
    using Lost = std::function<void(uint32_t rank, const std::string& why)>;

    // Returns when all ranks have met and are alike. Mismatch, Unavailable or DeadlineExceeded,
    // with who is missing.
    static Result<std::unique_ptr<RankLinks>> meet(RankSelf self, RankStore& store,
                                                   Nanoseconds timeout, Lost lost);
    RankLinks(const RankLinks&) = delete;
    RankLinks& operator=(const RankLinks&) = delete;
    ~RankLinks(); // closes

    uint32_t rank() const { return self_.rank; }
    uint32_t ranks() const { return self_.ranks; }
    // Whether two ranks are on one device.
    bool shares_device() const { return shares_device_; }

    // Who hears from now on; what came before is told first.
    void hear(RankEars& ears);
    void hear_no_more();
    // To rank 0, or, on rank 0, to one of the others. A rank that is gone is no error here.
    void send(uint32_t rank, const Note& note);
    void send_to_others(const Note& note);
    // From now on nobody's leaving is a loss.
    void expect_end() { ending_ = true; }
    // Tells the others that this rank ends and why.
    void say_failed(const std::string& why);
    // Waits until the others have left, `timeout` at most, then stops listening.
    void close(Nanoseconds timeout);

  private:
    RankLinks(RankSelf self, Lost lost) : self_(std::move(self)), lost_(std::move(lost)) {}
    struct Peer {
        uint32_t rank = 0;
        UniqueFd socket;
        bool open = true;      // the links' thread alone
        std::mutex send_mutex; // guards what is sent
    };
    Status gather(RankStore& store, Nanoseconds timeout);
    Status join(RankStore& store, Nanoseconds timeout);
    Result<std::unique_ptr<Peer>> admit(int listener, std::vector<std::string>& devices);
    void listen();
    void take(Peer& peer);
    void lose(uint32_t rank, const std::string& why);
    void tell(uint32_t from, Note note);

    const RankSelf self_;
    const Lost lost_;
    bool shares_device_ = false;
    std::vector<std::unique_ptr<Peer>> peers_;
    std::atomic<bool> ending_{false};
    std::atomic<bool> stop_{false};
    UniqueFd wake_;
    std::mutex ears_mutex_; // guards the two below
    RankEars* ears_ = nullptr;
    std::vector<std::pair<uint32_t, Note>> unheard_;
    std::thread thread_;
};

} // namespace berth::engine
