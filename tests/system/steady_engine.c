/* SPDX-License-Identifier: Apache-2.0 */
/* An engine without a model: attaches to its instance's weights, holds its grant, does as it is
 * told, and says so. Its life is as long as berthd lets it be. */
#include "engine_shim/client/berth.h"

#include <stdio.h>

static int fail(const char* what) {
    fprintf(stderr, "steady_engine: %s: %s\n", what, berth_error_message());
    return 2;
}

/* 0: go on; 1: told to stop. */
static int obey(berth_client* client, berth_grant* grant, const berth_command* command) {
    const char* error = NULL;
    uint64_t saved = 0;
    const int moves = command->kind == BERTH_OFFLOAD || command->kind == BERTH_RESTORE;
    if (command->kind == BERTH_OFFLOAD)
        saved = berth_grant_bytes(grant) > 0 ? 4096 : 0;
    if (moves && berth_grant_resize(grant, command->grant_bytes) != BERTH_OK)
        error = berth_error_message();
    berth_complete(client, command->id, error, saved);
    return command->kind == BERTH_STOP;
}

int main(void) {
    berth_client* client = NULL;
    berth_weights* weights = NULL;
    berth_grant* grant = NULL;
    if (berth_connect(NULL, &client) != BERTH_OK)
        return fail("connect");
    if (berth_attach(client, NULL, NULL, NULL, &weights) != BERTH_OK)
        return fail("attach");
    if (berth_grant_create(client, 0, &grant) != BERTH_OK ||
        berth_grant_resize(grant, 1 << 20) != BERTH_OK)
        return fail("grant");
    if (berth_set_state(client, BERTH_READY, NULL, NULL, NULL) != BERTH_OK)
        return fail("ready");
    for (int stop = 0; !stop;) {
        berth_command command = {0};
        command.size = sizeof command;
        berth_wait(client, 1000);
        while (!stop && berth_next_command(client, &command))
            stop = obey(client, grant, &command);
    }
    berth_grant_close(grant);
    berth_weights_close(weights);
    berth_close(client);
    return 0;
}
