// SPDX-License-Identifier: Apache-2.0
// Goal: no payload breaks decode(), and what it accepts is written and read again unchanged.
// Method: the input is a payload, and also a list of edits to a well-formed one, since random bytes
// alone hardly get past the JSON parser.
#include "engine_shim/protocol/messages.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using namespace berth::protocol;

void check(std::string_view payload) {
    auto first = decode(payload);
    if (!first)
        return;
    std::string written = encode(*first);
    auto second = decode(written);
    if (!second || encode(*second) != written)
        std::abort();
}

std::vector<std::string> well_formed() {
    Attached attached;
    attached.segment_bytes = {1, UINT64_MAX};
    State state;
    state.phases = {{"load", 1.5}};
    CommandDone done;
    done.error = berth::Error{berth::ErrorCode::kMismatch, "no", "Why", 0};
    std::vector<std::string> all;
    for (const Message& message :
         std::vector<Message>{Hello{}, Welcome{}, Attach{}, Progress{}, attached, state, Command{},
                              done, Report{}, Failed{}, Planned{}, Go{}, Sealed{}, Kept{}})
        all.push_back(encode(message));
    return all;
}

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::vector<std::string> kSeeds = well_formed();
    check({reinterpret_cast<const char*>(data), size});
    if (size == 0)
        return 0;
    std::string edited = kSeeds[data[0] % kSeeds.size()];
    for (size_t i = 1; i + 2 < size && i < 25; i += 3) {
        size_t at = (data[i] * 256U + data[i + 1]) % edited.size();
        // The odd ones insert what JSON is made of.
        static constexpr std::string_view kPieces = "{}[]\",:-.019eEtfn\\u ";
        if ((data[i + 2] & 1) != 0)
            edited.insert(at, 1, kPieces[data[i + 2] / 2 % kPieces.size()]);
        else
            edited[at] = static_cast<char>(data[i + 2] / 2);
    }
    check(edited);
    return 0;
}
