/* SPDX-License-Identifier: Apache-2.0 */
/* An engine in plain C as another language would write one: everything that berth.h offers, once.
 * Its "model" is the sum of all weights' bytes, its KV a pattern that fills its grant. With an
 * inherited socket it answers one line a connection:
 *     sum      GENERATION SUM GRANT_BYTES     after a step in which weights and KV were looked at
 *     hold     raises the gate until `free`
 *     stick    is in a step that does not end
 * Without one it makes steps of a millisecond whenever the gate lets it. */
#define _POSIX_C_SOURCE 200809L
#include "engine_shim/client/berth.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct engine {
    berth_client* client;
    berth_weights* weights;
    berth_grant* grant;
    unsigned char* saved; /* KV, while it is offloaded */
    uint64_t saved_bytes;
    uint64_t sum; /* of the weights, at first */
    int listener; /* -1: none */
    uint64_t generation;
    int offloaded;
    berth_counters counters;
};

static int fail(const char* what) {
    fprintf(stderr, "whole_engine: %s: %s\n", what, berth_error_message());
    return 2;
}

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000U + (uint64_t)now.tv_nsec / 1000U;
}

static uint64_t sum_of_weights(const berth_weights* weights) {
    uint64_t sum = 14695981039346656037U;
    for (size_t index = 0; index < berth_tensor_count(weights); ++index) {
        berth_tensor tensor = {0};
        tensor.size = sizeof tensor;
        if (berth_tensor_at(weights, index, &tensor) != BERTH_OK)
            return 0;
        for (uint64_t at = 0; at < tensor.bytes; ++at)
            sum = (sum ^ ((const unsigned char*)tensor.address)[at]) * 1099511628211U;
    }
    return sum;
}

static unsigned char pattern(uint64_t at) {
    return (unsigned char)(at * 7 + at / 4096 * 31 + 1);
}

static int kv_is_whole(const struct engine* engine) {
    const unsigned char* kv = berth_grant_address(engine->grant);
    for (uint64_t at = 0; at < berth_grant_bytes(engine->grant); ++at)
        if (kv[at] != pattern(at))
            return 0;
    return 1;
}

/* What is new of it is filled; what was there stays. */
static int resize(struct engine* engine, uint64_t bytes) {
    uint64_t at = berth_grant_bytes(engine->grant);
    if (berth_grant_resize(engine->grant, bytes) != BERTH_OK)
        return 0;
    unsigned char* kv = berth_grant_address(engine->grant);
    for (; at < berth_grant_bytes(engine->grant); ++at)
        kv[at] = pattern(at);
    return 1;
}

static const char* offload(struct engine* engine, const berth_command* command) {
    engine->offloaded = 1;
    free(engine->saved);
    engine->saved = NULL;
    engine->saved_bytes = command->drop_kv ? 0 : berth_grant_bytes(engine->grant);
    if (engine->saved_bytes > 0) {
        engine->saved = malloc(engine->saved_bytes);
        if (engine->saved == NULL)
            return "no memory to save KV into";
        memcpy(engine->saved, berth_grant_address(engine->grant), engine->saved_bytes);
    }
    return berth_grant_resize(engine->grant, command->grant_bytes) == BERTH_OK
               ? NULL
               : berth_error_message();
}

static const char* restore(struct engine* engine, const berth_command* command) {
    if (berth_grant_resize(engine->grant, command->grant_bytes) != BERTH_OK)
        return berth_error_message();
    unsigned char* kv = berth_grant_address(engine->grant);
    const uint64_t bytes = berth_grant_bytes(engine->grant);
    const uint64_t kept = engine->saved_bytes < bytes ? engine->saved_bytes : bytes;
    if (kept > 0)
        memcpy(kv, engine->saved, kept);
    for (uint64_t at = kept; at < bytes; ++at)
        kv[at] = pattern(at);
    free(engine->saved);
    engine->saved = NULL;
    engine->saved_bytes = 0;
    engine->offloaded = 0;
    if (command->canary && (sum_of_weights(engine->weights) != engine->sum || !kv_is_whole(engine)))
        return "the canary step gave another result than before";
    return NULL;
}

/* 1: told to stop. */
static int obey(struct engine* engine, const berth_command* command) {
    const char* error = NULL;
    switch (command->kind) {
    case BERTH_PAUSE:
    case BERTH_RESUME:
        break; /* berth_paused() says which */
    case BERTH_OFFLOAD:
        error = offload(engine, command);
        break;
    case BERTH_RESTORE:
        error = restore(engine, command);
        break;
    case BERTH_SHRINK:
    case BERTH_GROW:
        error = resize(engine, command->grant_bytes) ? NULL : berth_error_message();
        break;
    case BERTH_SERVE:
        engine->generation = command->generation;
        berth_serves_as(engine->client, engine->generation);
        break;
    case BERTH_STOP:
        if (berth_set_state(engine->client, BERTH_DRAINING, NULL, NULL, "told to stop") != BERTH_OK)
            error = berth_error_message();
        break;
    }
    fprintf(stderr, "command kind=%d bytes=%llu error=%s\n", (int)command->kind,
            (unsigned long long)command->grant_bytes, error == NULL ? "-" : error);
    berth_complete(engine->client, command->id, error, engine->saved_bytes);
    return command->kind == BERTH_STOP;
}

static int obey_all(struct engine* engine) {
    berth_command command = {0};
    command.size = sizeof command;
    int stop = 0;
    while (!stop && berth_next_command(engine->client, &command))
        stop = obey(engine, &command);
    return stop;
}

/* All of the work of an answer. */
static int answer(struct engine* engine, char* reply, size_t size) {
    const uint64_t began = now_us();
    berth_gate_raise(engine->client);
    berth_step_begins(engine->client);
    const uint64_t sum = sum_of_weights(engine->weights);
    const int whole = kv_is_whole(engine);
    berth_step_ends(engine->client);
    berth_note_progress(engine->client, 0, now_us() - began);
    berth_between_steps(engine->client, now_us() - began);
    berth_gate_lower(engine->client);
    engine->counters.requests_done++;
    engine->counters.steps_done++;
    if (berth_note_latency(engine->client, now_us() - began + 1, 0) != BERTH_OK)
        return fail("note_latency");
    snprintf(reply, size, "%llu %llu %llu %s\n", (unsigned long long)engine->generation,
             (unsigned long long)sum, (unsigned long long)berth_grant_bytes(engine->grant),
             whole ? "whole" : "broken");
    return 0;
}

static int serve_one(struct engine* engine, int peer) {
    char line[16] = {0};
    char reply[128] = "done\n";
    size_t have = 0;
    struct pollfd ready = {peer, POLLIN, 0};
    while (have + 1 < sizeof line && strchr(line, '\n') == NULL && poll(&ready, 1, 5000) == 1) {
        const ssize_t got = read(peer, line + have, sizeof line - 1 - have);
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    if (strcmp(line, "sum\n") == 0) {
        if (answer(engine, reply, sizeof reply) != 0)
            return 2;
    } else if (strcmp(line, "hold\n") == 0) {
        berth_gate_raise(engine->client);
    } else if (strcmp(line, "free\n") == 0) {
        berth_gate_lower(engine->client);
    } else if (strcmp(line, "stick\n") == 0) {
        berth_step_begins(engine->client);
        for (;;)
            pause();
    }
    if (write(peer, reply, strlen(reply)) < 0)
        fprintf(stderr, "whole_engine: a client has gone: %s\n", strerror(errno));
    return 0;
}

/* Everybody who waits in the queue of the socket. */
static int serve(struct engine* engine) {
    for (;;) {
        const int peer = accept(engine->listener, NULL, NULL);
        if (peer < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED
                       ? 0
                       : fail("accept");
        const int failed = serve_one(engine, peer);
        close(peer);
        if (failed)
            return failed;
    }
}

/* A step of a millisecond, of which the first half may be given up for a higher class. */
static void work(struct engine* engine) {
    const struct timespec half = {0, 500000};
    berth_step_begins(engine->client);
    nanosleep(&half, NULL);
    if (!berth_must_yield(engine->client) || berth_yield(engine->client)) {
        nanosleep(&half, NULL);
        engine->counters.steps_done++;
        engine->counters.batch_done = engine->counters.steps_done;
    }
    berth_step_ends(engine->client);
}

/* The first inherited descriptor, where berthd calls it so. */
static int inherited_listener(void) {
    const char* names = getenv("LISTEN_FDNAMES");
    const char* pid = getenv("LISTEN_PID");
    if (names == NULL || pid == NULL || strtol(pid, NULL, 10) != (long)getpid() ||
        strncmp(names, "berth-listen", strlen("berth-listen")) != 0)
        return -1;
    return fcntl(3, F_SETFL, O_NONBLOCK) == 0 ? 3 : -1;
}

static int begin(struct engine* engine) {
    if (berth_api_version() < BERTH_API_VERSION)
        return fail("the library is older than this program");
    if (berth_connect(NULL, &engine->client) != BERTH_OK)
        return fail("connect");
    if (berth_attach(engine->client, NULL, NULL, NULL, &engine->weights) != BERTH_OK)
        return fail("attach");
    if (berth_grant_create(engine->client, 0, &engine->grant) != BERTH_OK ||
        !resize(engine, berth_granted_bytes(engine->client)))
        return fail("grant");
    if (berth_set_grant_least(engine->client, (uint64_t)2 << 20) != BERTH_OK)
        return fail("least grant");
    engine->sum = sum_of_weights(engine->weights);
    engine->listener = inherited_listener();
    engine->generation = berth_generation(engine->client);
    if (engine->listener >= 0 && engine->generation == 0)
        berth_stand_by(engine->client);
    if (berth_set_state(engine->client, BERTH_READY, NULL, NULL, NULL) != BERTH_OK)
        return fail("ready");
    if (engine->generation > 0)
        berth_serves_as(engine->client, engine->generation);
    return 0;
}

int main(void) {
    struct engine engine = {0};
    engine.counters.size = sizeof engine.counters;
    int failed = begin(&engine);
    while (!failed && !obey_all(&engine)) {
        const int can_work = !berth_paused(engine.client) && !engine.offloaded;
        if (engine.listener < 0 && can_work)
            work(&engine);
        else if (engine.generation > 0 && can_work)
            failed = serve(&engine);
        if (engine.listener >= 0 || !can_work)
            berth_wait(engine.client, 10);
        if (!failed && berth_set_counters(engine.client, &engine.counters) != BERTH_OK)
            failed = fail("counters");
    }
    free(engine.saved);
    berth_grant_close(engine.grant);
    berth_weights_close(engine.weights);
    berth_close(engine.client);
    return failed;
}
