// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

// What a journal's memory holds. Inside base/http only.
//
//     header (a page) | slot 0 | slot 1 | ...          slot: head (a page) | inbound | entries |
//     out
//
// One process writes at a time (Journal::claim()), and it may be killed between any two
// instructions. So what belongs together is one SlotState, of which there are two: the one that is
// not current is written, then `current` is turned. Bytes in the three areas count only as far as
// the current state says, and are written before it says so.
namespace berth::http {

inline constexpr uint64_t kJournalMagic = 0x4c4e524a48545242; // "BRTHJRNL"
inline constexpr uint32_t kJournalVersion = 3;
inline constexpr uint64_t kJournalPage = 4096;
inline constexpr uint64_t kSlotBytesMin = uint64_t{64} << 10;
inline constexpr uint32_t kSlotsMax = 1024;
inline constexpr size_t kMemoBytesMax = 96;
inline constexpr size_t kIdentityBytesMax = 16;
// A request that so many processes in a row were at work on when they ended, none of which had
// another entry of it before, is what ends them: the next one ends its connection instead. Those
// that only wait are not counted against.
inline constexpr uint32_t kStrikesMax = 3;
// From so many on it is a suspect: its handler sees to it that no two of them are at work at once,
// so that the next end is counted against the right one.
inline constexpr uint32_t kStrikesSuspect = 2;

struct JournalHeader {
    uint64_t magic = 0;
    uint32_t version = 0;
    uint32_t slots = 0;
    uint64_t slot_bytes = 0;
    uint64_t generation = 0; // of who serves, or served last
    uint64_t last_serial = 0;
    // What the requests in here mean: to a process of another identity (another model, say) they
    // mean something else. Zeroes behind its end.
    std::array<char, kIdentityBytesMax> identity{};
};

// How far the connection's present request has come.
enum class Phase : uint32_t {
    kReading,   // no byte of its answer was handed to the kernel
    kContinued, // "100 Continue" was
    kAnswering, // a part of the answer was
    kAnswered,  // the out area holds the answer's last bytes
};

// What is being done about the present request: an end meanwhile counts against it.
enum class Work : uint32_t {
    kNone,     // it is being read, or waits
    kHandled,  // its handler has begun
    kComputed, // as the handler says
};

// Who does it stands in the journal, too.
constexpr uint64_t work_by(uint32_t pid, Work work) {
    return work == Work::kNone ? 0 : uint64_t{pid} << 8 | static_cast<uint64_t>(work);
}

// Offsets count the connection's bytes from its begin, in each direction.
struct SlotState {
    uint64_t in_base = 0;       // of the inbound area's first byte
    uint64_t in_start = 0;      // of the present request's first byte
    uint64_t request_bytes = 0; // once it was read whole
    uint64_t requests = 0;      // that are over
    uint64_t out_start = 0;     // of the out area's first byte
    uint64_t out_bytes = 0;     // in the out area: handed to the kernel, or about to be
    uint64_t covered = 0;       // entries whose text is in what was handed over
    uint32_t stage = 0;         // the handler's own mark of the same
    Phase phase = Phase::kReading;
    uint32_t closes = 0; // the connection ends with this answer
    uint32_t memo_bytes = 0;
    std::array<char, kMemoBytesMax> memo{};
};
static_assert(std::is_trivially_copyable_v<SlotState> && sizeof(SlotState) == 168);

struct SlotHead {
    uint64_t serial = 0;  // of its connection; 0: free
    uint32_t current = 0; // which state counts
    uint32_t strikes = 0; // of the present request, since it last came on
    uint64_t entries = 0; // low half: how many there are; high half: of which request
    uint64_t work = 0;    // see work_by()
    std::array<SlotState, 2> states{};
};

struct SlotLayout {
    uint64_t slot_bytes = 0;
    uint64_t in_bytes() const { return page_floor((slot_bytes - kJournalPage) / 2); }
    uint64_t entry_bytes() const { return page_floor((slot_bytes - kJournalPage) / 4); }
    uint64_t out_bytes() const { return slot_bytes - kJournalPage - in_bytes() - entry_bytes(); }
    uint64_t in_at() const { return kJournalPage; }
    uint64_t entries_at() const { return in_at() + in_bytes(); }
    uint64_t out_at() const { return entries_at() + entry_bytes(); }
    static uint64_t page_floor(uint64_t bytes) { return bytes / kJournalPage * kJournalPage; }
};

template <typename T>
void publish(T& field, T value) {
    std::atomic_ref<T>(field).store(value, std::memory_order_release);
}

} // namespace berth::http
