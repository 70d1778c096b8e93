// SPDX-License-Identifier: Apache-2.0
// Goal: no payload breaks decode(), and what it accepts is written and read again unchanged.
#include "engine_shim/protocol/messages.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace berth::protocol;
    auto first = decode({reinterpret_cast<const char*>(data), size});
    if (!first)
        return 0;
    std::string written = encode(*first);
    auto second = decode(written);
    if (!second || encode(*second) != written)
        std::abort();
    return 0;
}
