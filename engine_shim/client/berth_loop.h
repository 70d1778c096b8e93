/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "berth.h"

/* The part of berth.h that an engine's loop calls; its conventions hold here. */
#ifdef __cplusplus
extern "C" {
#endif

typedef enum berth_command_kind {
    BERTH_PAUSE = 0,   /* stop at the next boundary, keep everything */
    BERTH_RESUME = 1,  /* go on */
    BERTH_OFFLOAD = 2, /* save or drop KV, shrink the grant to grant_bytes, keep the process */
    BERTH_RESTORE = 3, /* grow to grant_bytes, bring KV back, go on */
    BERTH_STOP = 4,    /* finish or record what is under way within grace_ms, then end */
    BERTH_SHRINK = 5,  /* give the grant back from its top down to grant_bytes, go on with less;
                        * drop_kv as in Offload; since 102 */
    BERTH_GROW = 6,    /* grow to grant_bytes and use it at once; since 102 */
    BERTH_SERVE = 7    /* a standby: answer the inherited socket from now on; since 104 */
} berth_command_kind;

/* What of its connections an engine that hands over leaves to a successor. */
typedef enum berth_leaves {
    BERTH_LEAVES_NOTHING = 0,
    BERTH_LEAVES_CONNECTIONS = 1, /* those that have no request under way */
    BERTH_LEAVES_LATE = 2,        /* each once its request is over, the others at the end */
    BERTH_LEAVES_REQUESTS = 3     /* all, as they are */
} berth_leaves;

typedef struct berth_command {
    size_t size;
    uint64_t id;
    berth_command_kind kind;
    uint64_t grant_bytes;
    int64_t grace_ms;
    int drop_kv;         /* Offload: not 0 when KV must not be saved */
    int canary;          /* Restore: not 0 when one step must be checked first */
    uint64_t generation; /* Serve: as which; since 104 */
    int hand_over;       /* Stop: not 0: accept nothing new from now on, say BERTH_DRAINING once the
                          * socket and what `leaves` names are left to a successor, and finish the
                          * rest within grace_ms; since 104 */
    int leaves;          /* with hand_over, one of berth_leaves; since 106 */
} berth_command;
/* 1 and a command, or 0 when none waits; each must be completed. */
BERTH_EXPORT int berth_next_command(berth_client* client, berth_command* command);
/* `error` is NULL when it was carried out; else why not, for people. host_bytes: KV kept in host
 * memory. */
BERTH_EXPORT void berth_complete(berth_client* client, uint64_t id, const char* error,
                                 uint64_t host_bytes);
/* Sleeps until a command waits, berth_notify() or the time is over. */
BERTH_EXPORT void berth_wait(berth_client* client, uint64_t timeout_ms);
BERTH_EXPORT void berth_notify(berth_client* client);
BERTH_EXPORT int berth_paused(const berth_client* client);

/* Cheap enough for every layer: 1 when a higher class has work or a command waits. */
BERTH_EXPORT int berth_must_yield(const berth_client* client);
/* After the device was fenced: sleeps while it must. 1: go on with the step; 0: give it up and go
 * to berth_next_command(). */
BERTH_EXPORT int berth_yield(berth_client* client);

/* Demand of a class that raises the gate: raise as a request arrives, lower once it is answered. */
BERTH_EXPORT void berth_gate_raise(berth_client* client);
BERTH_EXPORT void berth_gate_lower(berth_client* client);

/* For an engine that raises, after each step, with the time that it took: sleeps while lower
 * classes have the turn that the policy leaves them, until berth_notify() or a command at the
 * latest. Returns how long, in microseconds. Since 103. */
BERTH_EXPORT uint64_t berth_between_steps(berth_client* client, uint64_t step_us);
/* Before it, of each answer under way: how many tokens it has had after its first, and microseconds
 * since that. Where the policy shares by targets, no turn is longer than all of these can bear.
 * Since 107. */
BERTH_EXPORT void berth_note_progress(berth_client* client, uint64_t later_tokens,
                                      uint64_t since_first_us);

/* For an engine whose socket berthd holds and passes on (LISTEN_FDS, LISTEN_FDNAMES
 * "berth-listen"). berth_generation(): as which it answers the socket from Ready on; 0: it stands
 * by, which it says with berth_stand_by() before it is ready, accepts nothing, and waits for Serve.
 * Once it answers the socket it says so with berth_serves_as(), for Serve before berth_complete().
 * Since 104. */
BERTH_EXPORT uint64_t berth_generation(const berth_client* client);
BERTH_EXPORT void berth_stand_by(berth_client* client);
BERTH_EXPORT void berth_serves_as(berth_client* client, uint64_t generation);

/* What a request means to this engine (its weights, tokenizer, names, context), as 64 characters at
 * most that are the same where another goes on with it; told with the next state. An engine that
 * never says it is never told to leave requests. Since 106. */
BERTH_EXPORT berth_status berth_set_identity(berth_client* client, const char* identity);

/* Around each step: one that does not come to its end shows in the reports. What berth_yield()
 * waits for is not its time. Since 104. */
BERTH_EXPORT void berth_step_begins(berth_client* client);
BERTH_EXPORT void berth_step_ends(berth_client* client);

typedef enum berth_state {
    BERTH_STARTING = 0,
    BERTH_READY = 1,
    BERTH_DRAINING = 2,
    BERTH_SUCCEEDED = 3,
    BERTH_FAILED = 4
} berth_state;
/* endpoint, reason (CamelCase) and message may be NULL. */
BERTH_EXPORT berth_status berth_set_state(berth_client* client, berth_state state,
                                          const char* endpoint, const char* reason,
                                          const char* message);
/* The grant with which this engine gets on at least, told with the next state (also BERTH_FAILED):
 * a standby is started with no less. Since 105. */
BERTH_EXPORT berth_status berth_set_grant_least(berth_client* client, uint64_t bytes);
/* What the next report tells of this engine's work. */
typedef struct berth_counters {
    size_t size;
    uint64_t requests_running;
    uint64_t requests_waiting;
    uint64_t requests_done;
    uint64_t tokens_done;
    uint64_t steps_done;
    uint64_t batch_done;
    uint64_t batch_total;
    uint64_t short_of_memory; /* of those waiting: whom only the size of the grant keeps out; a
                               * class that preempts others gets more then. Since 106 */
} berth_counters;
BERTH_EXPORT berth_status berth_set_counters(berth_client* client, const berth_counters* counters);
/* An answered request: microseconds until its first token, and per token after it (0: it had one).
 * Reports tell percentiles of the last ten seconds; policies compare them with targets (SLOBurn).
 */
BERTH_EXPORT berth_status berth_note_latency(berth_client* client, uint64_t ttft_us,
                                             uint64_t tpot_us);
/* Instead of it, for an engine that knows before a request's end how it fares, so that lower
 * classes give time back at once where the policy shares by targets: its first token when it comes,
 * how long a token takes of late (every few tokens), and its end. And, at each step, for how long
 * whoever waits longest has had no token. Since 106. */
BERTH_EXPORT berth_status berth_note_first_token(berth_client* client, uint64_t ttft_us);
BERTH_EXPORT berth_status berth_note_pace(berth_client* client, uint64_t tpot_us);
BERTH_EXPORT berth_status berth_note_awaited(berth_client* client, uint64_t longest_us);
BERTH_EXPORT berth_status berth_note_answered(berth_client* client, uint64_t ttft_us,
                                              uint64_t tpot_us);

#ifdef __cplusplus
}
#endif
