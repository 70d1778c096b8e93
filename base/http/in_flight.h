// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/parking.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>

// What a journal and its parked connections tell somebody who serves none of them: which requests
// are in the middle, and, where they are to be ended, how.
namespace berth::http {

struct RequestInFlight {
    uint32_t slot = 0;
    uint64_t serial = 0; // of its connection
    uint64_t number = 0; // of the connection's requests
    auto operator<=>(const RequestInFlight&) const = default;
};

// Both only while nobody serves: whoever does looks through the same queue. Corrupt: the file holds
// no journal of this format.
//
// Of which a process has read at least a byte, and which are not answered whole.
Result<std::set<RequestInFlight>> requests_in_flight(int journal, Parking& parking);
// Ends the connections of those that are in flight still, frees their slots and wipes what is in
// them; how many.
Result<size_t> end_requests(int journal, Parking& parking, const std::set<RequestInFlight>& which);

} // namespace berth::http
