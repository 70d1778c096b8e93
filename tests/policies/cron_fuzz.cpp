// SPDX-License-Identifier: Apache-2.0
// Whatever the text, parse_cron returns a value or an error; and what it accepts comes some day,
// and changes at the minute that next_change names and not in the one before.
#include "policies/cron.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace berth::policies;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const berth::Result<Cron> cron = parse_cron(text);
    if (!cron)
        return 0;
    const CivilTime start{2090 + static_cast<int>(size % 17), 2, 28, 23, 59};
    const bool now = matches(*cron, start);
    const std::optional<CivilTime> next = next_change(*cron, start);
    if (!next && !now)
        std::abort(); // it would never come
    if (next && (*next <= start || matches(*cron, *next) == now))
        std::abort();
    return 0;
}
