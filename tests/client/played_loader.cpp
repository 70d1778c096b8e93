// SPDX-License-Identifier: Apache-2.0
// A berth-loader that plans well, takes memory on the device beside, and then hands over less than
// it says: a segment is missing.
#include "engine_shim/protocol/messages.h"

#include <sys/mman.h>

using namespace berth;

int main() {
    constexpr int kControl = 3;
    const Deadline soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    protocol::Planned planned;
    planned.id = 1;
    planned.fingerprint_json = "{}";
    planned.fingerprint = std::string(64, 'b');
    planned.segment_bytes = {4096};
    planned.device_overhead_bytes = 1000;
    if (!protocol::send(kControl, planned, {}, soon))
        return 1;
    auto go = protocol::receive(kControl, soon);
    if (!go || !std::holds_alternative<protocol::Go>(go->message))
        return 2;
    protocol::Sealed sealed;
    sealed.fingerprint = planned.fingerprint;
    sealed.segment_bytes = planned.segment_bytes;
    UniqueFd manifest(::memfd_create("played", MFD_CLOEXEC));
    if (!protocol::send(kControl, sealed, {manifest.get()}, soon))
        return 3;
    return protocol::receive(kControl, soon) ? 0 : 4;
}
