/* SPDX-License-Identifier: Apache-2.0 */
/* An engine without a model that is always busy. As `online` it has a request in flight from the
 * first moment on and answers one every 20 ms, far within any target; as `batch` it makes a step of
 * 1 ms whenever the gate lets it, and counts them. With a folder as second word: while the file
 * `slow` is there, `online` is in the middle of one answer whose tokens take 60 ms each; with
 * `late`, its oldest request has waited for 2 s; with `idle` it has no request. */
#define _POSIX_C_SOURCE 200809L /* nanosleep, access */
#include "engine_shim/client/berth.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int fail(const char* what) {
    fprintf(stderr, "busy_engine: %s: %s\n", what, berth_error_message());
    return 2;
}

static void sleep_ms(long milliseconds) {
    const struct timespec span = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&span, NULL);
}

/* 1: told to stop. */
static int obey(berth_client* client) {
    berth_command command = {0};
    command.size = sizeof command;
    int stop = 0;
    while (!stop && berth_next_command(client, &command)) {
        berth_complete(client, command.id, NULL, 0);
        stop = command.kind == BERTH_STOP;
    }
    return stop;
}

static int is_there(const char* folder, const char* name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return folder[0] != 0 && access(path, F_OK) == 0;
}

/* One answer, or a part of one. */
static berth_status answer(berth_client* client, const char* folder, uint64_t* done) {
    if (is_there(folder, "slow"))
        return berth_note_pace(client, 60000);
    if (is_there(folder, "late"))
        return berth_note_awaited(client, 2000000);
    (*done)++;
    return berth_note_latency(client, 2000, 500);
}

static int work(berth_client* client, int online, const char* folder) {
    berth_counters counters = {0};
    int raised = 0;
    counters.size = sizeof counters;
    while (!obey(client)) {
        if (online && raised == is_there(folder, "idle")) {
            raised ? berth_gate_lower(client) : berth_gate_raise(client);
            raised = !raised;
        }
        if (online) {
            sleep_ms(20);
            if (raised && answer(client, folder, &counters.requests_done) != BERTH_OK)
                return fail("telling of latencies");
        } else if (!berth_must_yield(client) || berth_yield(client)) {
            sleep_ms(1);
            counters.steps_done++;
        }
        if (berth_set_counters(client, &counters) != BERTH_OK)
            return fail("counters");
    }
    return 0;
}

int main(int count, char** words) {
    berth_client* client = NULL;
    berth_weights* weights = NULL;
    if (count < 2 || count > 3)
        return 2;
    if (berth_connect(NULL, &client) != BERTH_OK)
        return fail("connect");
    if (berth_attach(client, NULL, NULL, NULL, &weights) != BERTH_OK)
        return fail("attach");
    if (berth_set_state(client, BERTH_READY, NULL, NULL, NULL) != BERTH_OK)
        return fail("ready");
    const int status = work(client, strcmp(words[1], "online") == 0, count > 2 ? words[2] : "");
    berth_weights_close(weights);
    berth_close(client);
    return status;
}
