// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come in, the keeper answers with JSON of its own and keeps what it holds.
#include "base/json.h"
#include "cache/keep/keeper_store.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace berth;
    static KeeperStore store(1000);
    Packet request;
    request.payload.assign(reinterpret_cast<const char*>(data), size);
    Packet reply = store.handle(std::move(request));
    auto body = json::parse(reply.payload, "the reply");
    if (!body || !body->is_object() || !body->get_object().contains("ok") ||
        reply.payload.size() > kPacketBytesMax)
        std::abort();
    return 0;
}
