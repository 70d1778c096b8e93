// SPDX-License-Identifier: Apache-2.0
#include "base/http/in_flight.h"

#include "base/http/journal_format.h"
#include "base/http/tcp_count.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace berth::http {

namespace {

template <typename T>
Result<T> read_at(int journal, uint64_t at) {
    T value;
    if (::pread(journal, &value, sizeof value, static_cast<off_t>(at)) != ssize_t{sizeof value})
        return fail_errno("reading the journal");
    return value;
}

Result<JournalHeader> header_of(int journal) {
    BERTH_ASSIGN(const JournalHeader header, read_at<JournalHeader>(journal, 0));
    if (header.magic != kJournalMagic || header.version != kJournalVersion ||
        header.slots > kSlotsMax || header.slot_bytes < kSlotBytesMin)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("expected a journal of version {}, found none", kJournalVersion));
    return header;
}

uint64_t slot_at(const JournalHeader& header, uint32_t slot) {
    return kJournalPage + slot * header.slot_bytes;
}

// Every number in it may be of a process that was killed while it wrote.
std::optional<RequestInFlight> in_flight(int journal, const JournalHeader& header,
                                         const Parking::Found& one) {
    if (one.name.slot >= header.slots || one.name.serial == 0)
        return std::nullopt;
    const auto head = read_at<SlotHead>(journal, slot_at(header, one.name.slot));
    if (!head || head->serial != one.name.serial || head->current > 1)
        return std::nullopt;
    const SlotState& state = head->states[head->current];
    const Result<TcpCount> count = tcp_count(one.fd.get());
    if (!count || count->taken <= state.in_start || state.phase == Phase::kAnswered)
        return std::nullopt;
    return RequestInFlight{one.name.slot, one.name.serial, state.requests};
}

} // namespace

Result<std::set<RequestInFlight>> requests_in_flight(int journal, Parking& parking) {
    BERTH_ASSIGN(const JournalHeader header, header_of(journal));
    BERTH_ASSIGN(const std::vector<Parking::Found> parked, parking.look());
    std::set<RequestInFlight> found;
    for (const Parking::Found& one : parked)
        if (const auto request = in_flight(journal, header, one))
            found.insert(*request);
    return found;
}

// Who serves next finds no slot of theirs, and ends what is left of them.
Result<size_t> end_requests(int journal, Parking& parking, const std::set<RequestInFlight>& which) {
    BERTH_ASSIGN(const JournalHeader header, header_of(journal));
    BERTH_ASSIGN(const std::vector<Parking::Found> parked, parking.look());
    size_t ended = 0;
    for (const Parking::Found& one : parked) {
        const auto request = in_flight(journal, header, one);
        if (!request || !which.contains(*request))
            continue;
        // Its prompt goes at once, not when somebody serves next.
        if (::fallocate(journal, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(slot_at(header, request->slot)),
                        static_cast<off_t>(header.slot_bytes)) != 0)
            return fail_errno("wiping a slot of the journal");
        (void)::shutdown(one.fd.get(), SHUT_RDWR);
        ++ended;
    }
    return ended;
}

} // namespace berth::http
