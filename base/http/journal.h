// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/journal_format.h"
#include "base/unique_fd.h"
#include "base/units.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace berth::http {

// Memory that outlives the processes which serve connections: a memfd whose descriptor somebody
// else holds too, in slots of one connection each. Its lock is the fence between them: the kernel
// gives it to one process, and takes it back when all of that process's threads have ended, so that
// none of them is still within a call that sends.
//
// claim() and release() may be called on any thread, one at a time; all else after claim(), on one.
class Journal {
  public:
    // As large as the file is. InvalidArgument: it is too small for one slot, or not writable.
    static Result<std::unique_ptr<Journal>> open(UniqueFd memfd);
    Journal(const Journal&) = delete;
    Journal& operator=(const Journal&) = delete;
    ~Journal();

    // Makes this process the one that serves, as `generation`; waits so long for one that is
    // ending. FailedPrecondition with the reason Fenced: another process serves; StaleGeneration:
    // one of this number or a later has served. What is no journal of this format is begun anew.
    Status claim(uint64_t generation, Nanoseconds patience);
    void release();
    uint64_t generation() const { return generation_; } // 0: not claimed
    // Of those who wrote what is in it; empty: nobody has said. At most kIdentityBytesMax count.
    std::string identity() const;
    void set_identity(std::string_view identity);

    uint32_t slots() const { return slots_; }
    SlotLayout layout() const { return layout_; }
    std::byte* slot(uint32_t number) const { return base_ + slot_at(number); }
    // Of the connection in it; 0: it is free.
    uint64_t serial_of(uint32_t number) const;
    uint64_t next_serial();
    // A slot that is not in use, or -1. It is in use from here on.
    int64_t take_slot();
    void free_slot(uint32_t number) { free_.push_back(number); }
    // Frees and wipes all slots but these.
    void keep_only(const std::vector<bool>& used);
    // Zeroes; much is given back to the system instead.
    void wipe(std::byte* at, uint64_t bytes);

  private:
    Journal(UniqueFd memfd, std::byte* base, uint64_t bytes);
    JournalHeader& header() const { return *reinterpret_cast<JournalHeader*>(base_); }
    uint64_t slot_at(uint32_t number) const { return kJournalPage + number * layout_.slot_bytes; }
    Status lock(Nanoseconds patience);
    void begin_anew();

    UniqueFd memfd_;
    std::byte* base_;
    uint64_t bytes_;
    SlotLayout layout_;
    uint32_t slots_ = 0;
    uint64_t generation_ = 0;
    std::vector<uint32_t> free_;
};

} // namespace berth::http
