// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/berth.h"
#include "engine_shim/client/client.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>

// What the C interface's handles are. A grant holds its client's counters through the shared
// client, so that it may be closed after it.
struct berth_client {
    std::shared_ptr<berth::Client> client;
};
struct berth_weights {
    berth::WeightSet set;
    std::string config;
    std::string canary_digest;
    // The manifest's texts end where the next begins; C wants each with its NUL.
    std::vector<std::string> names, aliases, dtypes;
};
struct berth_grant {
    std::weak_ptr<berth::Client> client;
    std::unique_ptr<berth::GrantArena> arena;
};

namespace berth::c {

berth_status record(const Error& error); // keeps the message for berth_error_message()

std::unique_ptr<berth_weights> handle_of(berth::WeightSet set);

// A caller's struct as this library knows it: what is beyond the caller's size is 0.
template <typename T>
T read_struct(const T* given) {
    T known{};
    if (given != nullptr)
        std::memcpy(&known, given, std::min(given->size, sizeof known));
    return known;
}
// And the other way; the caller's size stays.
template <typename T>
void write_struct(T* to, T from) {
    from.size = to->size;
    std::memcpy(to, &from, std::min(to->size, sizeof from));
}

template <typename Body>
berth_status guarded(Body body) noexcept {
    try {
        Status done = body();
        return done ? BERTH_OK : record(done.error());
    } catch (const std::exception& thrown) {
        return record(Error{ErrorCode::kInternal, thrown.what(), {}, 0});
    } catch (...) {
        return record(Error{ErrorCode::kInternal, "an unknown exception", {}, 0});
    }
}

} // namespace berth::c
