// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/journal.h"
#include "base/http/kept_connection.h"
#include "base/http/parking.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace berth::http {

// How a server's connections outlive its process: each has a slot in a journal and a duplicate of
// its descriptor parked in the kernel; whoever serves next takes both. TCP alone, and not through
// TLS, whose keys are the process's. A connection that is not kept works as any other does and ends
// with the process; it is counted, and said once.
//
// claim() may be called on any thread before the others, which are for the io thread.
class Keeping : public std::enable_shared_from_this<Keeping> {
  public:
    struct Counts {
        uint64_t kept = 0;           // now
        uint64_t taken_over = 0;     // from a process before this one
        uint64_t cut = 0;            // could not be taken over: the connection was ended
        uint64_t other_identity = 0; // of them: its request was one of another model, say
        uint64_t no_slot = 0;        // not kept: all slots are in use,
        uint64_t not_parked = 0;     // or the kernel holds no more descriptors,
        uint64_t not_offered = 0;    // or it is no TCP connection,
        uint64_t too_large = 0;      // or a request or an answer did not fit its slot
    };

    // `identity`: what a request means to this process (kIdentityBytesMax characters of it). Those
    // that one of another identity has begun to answer are not gone on with.
    static Result<std::shared_ptr<Keeping>> open(UniqueFd journal, UniqueFd parked_in,
                                                 UniqueFd parked_out, std::string identity = {});

    // See Journal::claim().
    Status claim(uint64_t generation, Nanoseconds patience) {
        return journal_->claim(generation, patience);
    }
    void release() { journal_->release(); }

    // Before a connection is accepted, so that it can be parked at once; null: no slot is free.
    std::shared_ptr<KeptConnection> reserve();
    // Takes the place that was reserved. False: it is not kept; the slot is free again.
    bool park(int socket, KeptConnection& place);
    // For a connection that is open, with nothing read that is not handled, or to be sent.
    std::shared_ptr<KeptConnection> keep(int socket);

    struct TakenOver {
        UniqueFd socket;
        std::shared_ptr<KeptConnection> kept;
    };
    // Once, after claim(): what the process before left. What cannot be gone on with is ended.
    std::vector<TakenOver> take_over();
    // What is kept now is left: the queue is made to hold that and nothing else, and is not touched
    // any more.
    void begin_leaving();

    Counts counts() const;

    // KeptConnection's.
    void freed(const KeptConnection& connection);
    void note_too_large();
    void wipe(std::byte* at, uint64_t bytes) { journal_->wipe(at, bytes); }

  private:
    Keeping(std::unique_ptr<Journal> journal, Parking parking, std::string identity);
    bool is_foreign(const KeptConnection& connection) const;
    std::shared_ptr<KeptConnection> place(uint32_t slot);
    std::vector<Parking::Live> live() const;
    void tidy();
    void say_once(uint64_t& count, const char* why);

    std::unique_ptr<Journal> journal_;
    Parking parking_;
    const std::string identity_;
    struct Open {
        uint64_t serial = 0;
        int fd = -1;
    };
    std::map<uint32_t, Open> open_; // by slot
    Counts counts_;
    size_t over_ = 0; // connections that ended since the queue was written anew
    size_t tidy_at_;  // messages of the queue
    bool leaving_ = false;
};

} // namespace berth::http
