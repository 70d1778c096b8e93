// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/journal_format.h"
#include "base/http/tcp_count.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace berth::http {

class Keeping;

// One connection's slot in a journal: what a successor of this process needs to go on with it. Of
// the present request it holds the bytes as they were received, a memo and entries of its handler,
// and the bytes handed to the kernel last; nothing of requests that are over.
//
// On the io thread alone. Destroying it leaves the slot to a successor, as the process's end would.
// Once ended, given up or left it is no longer active(): every call is without effect then.
class KeptConnection {
  public:
    KeptConnection(std::shared_ptr<Keeping> keeping, uint32_t slot, std::byte* memory,
                   SlotLayout layout);
    KeptConnection(const KeptConnection&) = delete;
    KeptConnection& operator=(const KeptConnection&) = delete;
    ~KeptConnection();

    // Begins a slot for a connection that has come so far.
    void begin(uint64_t serial, const TcpCount& count);
    // Takes over a slot that another process has left. False: its contents are not what they must
    // be, whatever they are nothing outside the slot is touched; or its request has ended
    // kStrikesMax processes that were at work on it.
    bool take_over(const TcpCount& count);

    bool active() const { return active_; }
    uint32_t slot() const { return slot_; }
    uint64_t serial() const { return serial_; }

    // For the connection: what was received and belongs to no request that is over; where to
    // receive next (empty: no room), and how much came.
    std::string_view inbound() const;
    std::span<char> room();
    void received(size_t bytes) { in_total_ += bytes; }
    // A request was read whole: it is the first `bytes` of inbound().
    void begin_request(size_t bytes);
    // Before bytes are handed to the kernel, all earlier ones having been taken. False, and the
    // slot is given up: there is no room for them.
    bool begin_write(std::string_view bytes, Phase phase, bool closes);
    void end_request(); // wipes it
    void end();         // the connection is over: wipes and frees the slot
    // Bytes that the kernel has handed to this process and that it has not heard of yet.
    void catch_up(const TcpCount& count);
    // The same, though the connection goes on: something does not fit, or it is to end with this
    // process. What is left of inbound() behind the present request (all of it, if that was not
    // read whole) is handed out by leftover().
    enum class Why { kTooLarge, kEndsHere };
    void give_up(Why why = Why::kTooLarge);
    bool has_leftover() const { return !leftover_.empty(); }
    std::string leftover() { return std::exchange(leftover_, {}); }
    // Leaves it as it is, for a successor.
    void leave();

    // Of one that was taken over: what the kernel had not taken; how far its request was.
    std::string_view unsent() const { return unsent_; }
    Phase phase() const { return state_.phase; }
    bool closes() const { return state_.closes != 0; }
    uint64_t requests() const { return state_.requests; }

    // For the request's handler. resumes(): another process began to answer it, and left these.
    bool resumes() const { return active_ && resumes_; }
    // Its handler has noted something of the present request, whose answer is not written whole.
    bool is_begun() const;
    bool is_read() const; // the present request is there whole, its answer is not
    std::string_view memo() const { return {state_.memo.data(), state_.memo_bytes}; }
    std::span<const uint64_t> entries() const;
    size_t covered() const { return state_.covered; }
    uint32_t stage() const { return state_.stage; }
    // Once, before it answers; at most kMemoBytesMax.
    void note(std::string_view memo);
    // What is done about the request, by whoever does it, on any thread; the request's handler is
    // running until it says otherwise. The journal stays for as long as somebody has this.
    struct MarkedSlot {
        std::shared_ptr<Keeping> keeping;
        std::atomic<uint64_t*> work; // null: the slot is not this request's any more
    };
    using Mark = std::shared_ptr<MarkedSlot>;
    Mark mark();
    static void set(const Mark& mark, Work work);
    void begin_work() { set(mark(), Work::kHandled); }
    bool is_suspect() const { return active_ && head().strikes >= kStrikesSuspect; }
    // An entry more; for want of room the slot is given up.
    void append(uint64_t entry);
    // What the next write holds: the text of so many entries.
    void cover(size_t entries, uint32_t stage);

  private:
    SlotHead& head() const { return *reinterpret_cast<SlotHead*>(memory_); }
    char* area(uint64_t at) const { return reinterpret_cast<char*>(memory_ + at); }
    void commit(const SlotState& next);
    bool fits(const SlotState& state, const TcpCount& count, uint64_t entries) const;
    bool is_worth_it(const SlotState& state);
    void clear_record();
    void lose_mark();
    void wipe_request(uint64_t inbound_at, uint64_t inbound_bytes);
    void make_room();
    void free_slot();

    std::shared_ptr<Keeping> keeping_;
    uint32_t slot_;
    std::byte* memory_;
    SlotLayout layout_;
    uint64_t serial_ = 0;
    bool active_ = false;
    bool resumes_ = false;
    SlotState state_;
    uint32_t current_ = 0;
    uint64_t in_total_ = 0;
    size_t entries_ = 0;
    size_t out_high_ = 0; // bytes of the out area that were ever used by this request
    size_t cover_entries_ = 0;
    uint32_t cover_stage_ = 0;
    std::string unsent_;
    std::string leftover_;
    Mark mark_;
};

} // namespace berth::http
