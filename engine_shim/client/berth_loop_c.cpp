// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/c_handles.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

using namespace berth;
using namespace berth::c;

static_assert(static_cast<int>(protocol::CommandKind::kStop) == BERTH_STOP);
static_assert(static_cast<int>(protocol::CommandKind::kGrow) == BERTH_GROW);
static_assert(static_cast<int>(protocol::CommandKind::kServe) == BERTH_SERVE);
static_assert(static_cast<int>(protocol::EngineState::kFailed) == BERTH_FAILED);

namespace {

std::chrono::milliseconds milliseconds_of(uint64_t number) {
    return std::chrono::milliseconds(std::min<uint64_t>(number, uint64_t{24} * 3600 * 1000));
}

berth_leaves leaves_from(const std::string& name) {
    return name == "Requests"      ? BERTH_LEAVES_REQUESTS
           : name == "Late"        ? BERTH_LEAVES_LATE
           : name == "Connections" ? BERTH_LEAVES_CONNECTIONS
                                   : BERTH_LEAVES_NOTHING;
}

template <typename Note>
berth_status note(berth_client* client, const Note& told) {
    return guarded([&]() -> Status {
        if (client == nullptr)
            return fail(ErrorCode::kInvalidArgument, "client is NULL");
        told(*client->client);
        return {};
    });
}

} // namespace

int berth_next_command(berth_client* client, berth_command* command) {
    int found = 0;
    (void)guarded([&]() -> Status {
        auto next = client->client->next_command();
        if (!next)
            return {};
        berth_command out{};
        out.id = next->id;
        out.kind = static_cast<berth_command_kind>(next->kind);
        out.grant_bytes = next->grant_bytes;
        out.grace_ms = next->grace_ms;
        out.drop_kv = next->kv == "Drop" ? 1 : 0;
        out.canary = next->canary ? 1 : 0;
        out.generation = next->generation;
        out.hand_over = next->hand_over ? 1 : 0;
        out.leaves = leaves_from(next->leaves);
        write_struct(command, out);
        found = 1;
        return {};
    });
    return found;
}

void berth_complete(berth_client* client, uint64_t id, const char* error, uint64_t host_bytes) {
    (void)guarded([&]() -> Status {
        protocol::CommandDone done;
        done.id = id;
        done.grant_bytes = client->client->counters().grant_bytes.load();
        done.host_bytes = host_bytes;
        if (error != nullptr)
            done.error = Error{ErrorCode::kInternal, error, "EngineRefused", 0};
        client->client->complete(std::move(done));
        return {};
    });
}

void berth_wait(berth_client* client, uint64_t timeout_ms) {
    client->client->wait(milliseconds_of(timeout_ms));
}
void berth_notify(berth_client* client) {
    client->client->notify();
}
int berth_paused(const berth_client* client) {
    return client->client->paused() ? 1 : 0;
}
int berth_must_yield(const berth_client* client) {
    return client->client->must_yield() ? 1 : 0;
}

int berth_yield(berth_client* client) {
    bool go_on = false;
    (void)guarded([&]() -> Status {
        go_on = client->client->yield_here();
        return {};
    });
    return go_on ? 1 : 0;
}

void berth_gate_raise(berth_client* client) {
    client->client->raise_gate();
}
void berth_gate_lower(berth_client* client) {
    client->client->lower_gate();
}

void berth_note_progress(berth_client* client, uint64_t later_tokens, uint64_t since_first_us) {
    client->client->note_progress(later_tokens, std::chrono::microseconds(since_first_us));
}

uint64_t berth_between_steps(berth_client* client, uint64_t step_us) {
    uint64_t slept_us = 0;
    (void)guarded([&]() -> Status {
        const Nanoseconds slept = client->client->between_steps(std::chrono::microseconds(step_us));
        slept_us = static_cast<uint64_t>(slept.count()) / 1000;
        return {};
    });
    return slept_us;
}

uint64_t berth_generation(const berth_client* client) {
    return client->client->welcome().generation;
}
void berth_stand_by(berth_client* client) {
    client->client->stand_by();
}
void berth_serves_as(berth_client* client, uint64_t generation) {
    (void)guarded([&]() -> Status {
        client->client->serves_as(generation);
        return {};
    });
}
void berth_step_begins(berth_client* client) {
    client->client->step_begins();
}
void berth_step_ends(berth_client* client) {
    client->client->step_ends();
}

berth_status berth_set_grant_least(berth_client* client, uint64_t bytes) {
    return guarded([&]() -> Status {
        if (client == nullptr)
            return fail(ErrorCode::kInvalidArgument, "client is NULL");
        client->client->set_grant_least(bytes);
        return {};
    });
}

berth_status berth_set_identity(berth_client* client, const char* identity) {
    return guarded([&]() -> Status {
        if (client == nullptr || identity == nullptr)
            return fail(ErrorCode::kInvalidArgument, "client or identity is NULL");
        if (std::string_view(identity).size() > 64)
            return fail(ErrorCode::kInvalidArgument, "identity has more than 64 characters");
        client->client->set_identity(identity);
        return {};
    });
}

berth_status berth_set_state(berth_client* client, berth_state state, const char* endpoint,
                             const char* reason, const char* message) {
    return guarded([&]() -> Status {
        if (client == nullptr || state < BERTH_STARTING || state > BERTH_FAILED)
            return fail(ErrorCode::kInvalidArgument,
                        client == nullptr ? "client is NULL" : "state is none of berth_state");
        if (std::string due = client->client->canary_due(); state == BERTH_READY && !due.empty())
            return fail(ErrorCode::kFailedPrecondition,
                        fmt::format("the policy wants the canary of weight set {} reproduced "
                                    "before Ready: berth_weights_canary(), berth_canary_report()",
                                    due));
        auto text = [](const char* given) { return std::string(given != nullptr ? given : ""); };
        client->client->set_state(static_cast<protocol::EngineState>(state), text(endpoint),
                                  text(reason), text(message));
        return {};
    });
}

berth_status berth_note_latency(berth_client* client, uint64_t ttft_us, uint64_t tpot_us) {
    return note(client, [&](Client& to) {
        to.note_latency(std::chrono::microseconds(ttft_us), std::chrono::microseconds(tpot_us));
    });
}

berth_status berth_note_first_token(berth_client* client, uint64_t ttft_us) {
    return note(client,
                [&](Client& to) { to.note_first_token(std::chrono::microseconds(ttft_us)); });
}

berth_status berth_note_pace(berth_client* client, uint64_t tpot_us) {
    return note(client, [&](Client& to) { to.note_pace(std::chrono::microseconds(tpot_us)); });
}

berth_status berth_note_awaited(berth_client* client, uint64_t longest_us) {
    return note(client,
                [&](Client& to) { to.note_awaited(std::chrono::microseconds(longest_us)); });
}

berth_status berth_note_answered(berth_client* client, uint64_t ttft_us, uint64_t tpot_us) {
    return note(client, [&](Client& to) {
        to.note_answered(std::chrono::microseconds(ttft_us), std::chrono::microseconds(tpot_us));
    });
}

berth_status berth_set_counters(berth_client* client, const berth_counters* counters) {
    return guarded([&]() -> Status {
        if (client == nullptr || counters == nullptr)
            return fail(ErrorCode::kInvalidArgument, "client or counters is NULL");
        berth_counters given = read_struct(counters);
        Client::Counters& to = client->client->counters();
        to.requests_running = given.requests_running;
        to.requests_waiting = given.requests_waiting;
        to.requests_done = given.requests_done;
        to.tokens_done = given.tokens_done;
        to.steps_done = given.steps_done;
        to.batch_done = given.batch_done;
        to.batch_total = given.batch_total;
        to.short_of_memory = given.short_of_memory;
        return {};
    });
}
