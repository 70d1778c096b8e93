/* SPDX-License-Identifier: Apache-2.0 */
/* An engine without a model that is always busy. As `online` it has a request in flight from the
 * first moment on and answers one every 20 ms, far within any target; as `batch` it makes a step of
 * 1 ms whenever the gate lets it, and counts them. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "engine_shim/client/berth.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

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

static int work(berth_client* client, int online) {
    berth_counters counters = {0};
    counters.size = sizeof counters;
    if (online)
        berth_gate_raise(client);
    while (!obey(client)) {
        if (online) {
            sleep_ms(20);
            counters.requests_done++;
            if (berth_note_latency(client, 2000, 500) != BERTH_OK)
                return fail("note_latency");
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
    if (count != 2)
        return 2;
    if (berth_connect(NULL, &client) != BERTH_OK)
        return fail("connect");
    if (berth_attach(client, NULL, NULL, NULL, &weights) != BERTH_OK)
        return fail("attach");
    if (berth_set_state(client, BERTH_READY, NULL, NULL, NULL) != BERTH_OK)
        return fail("ready");
    const int status = work(client, strcmp(words[1], "online") == 0);
    berth_weights_close(weights);
    berth_close(client);
    return status;
}
