/* SPDX-License-Identifier: Apache-2.0 */
/* Goal: berth.h is plain C99 and libberth.so works from it. c_api_test.cpp plays berthd. */
#include "engine_shim/client/berth.h"

#include <stdio.h>
#include <string.h>

static int calls = 0;

static void progress(void* context, const char* phase, uint64_t done, uint64_t total) {
    (void)context;
    (void)total;
    if (strcmp(phase, "loading") == 0 && done == 1)
        ++calls;
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s is false; last error: %s\n", __LINE__, #condition,        \
                    berth_error_message());                                                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int check_weights(const berth_weights* weights) {
    berth_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.size = sizeof tensor;
    CHECK(berth_tensor_count(weights) == 3);
    CHECK(berth_tensor_find(weights, "a.weight", &tensor) == BERTH_OK);
    CHECK(strcmp(tensor.dtype, "F32") == 0);
    CHECK(tensor.rank == 2 && tensor.shape[0] == 2 && tensor.shape[1] == 3);
    CHECK(((const float*)tensor.address)[5] == 5.0F);
    CHECK(tensor.alias_of == NULL);
    CHECK(berth_tensor_at(weights, 2, &tensor) == BERTH_OK);
    CHECK(strcmp(tensor.name, "tied.weight") == 0 && strcmp(tensor.alias_of, "a.weight") == 0);
    CHECK(berth_tensor_find(weights, "b.bais", &tensor) == BERTH_NOT_FOUND);
    CHECK(strstr(berth_error_message(), "b.bias") != NULL);
    CHECK(berth_tensor_at(weights, 3, &tensor) == BERTH_INVALID_ARGUMENT);
    return 0;
}

static void await_command(berth_client* client, berth_command* command) {
    memset(command, 0, sizeof *command);
    command->size = sizeof *command;
    while (!berth_next_command(client, command))
        berth_wait(client, 100);
}

/* Its grant is grown, shrunk from its top, and refused a size that it cannot live with. */
static int check_sizes(berth_client* client, berth_grant* grant) {
    berth_command command;
    char* memory = berth_grant_address(grant);
    await_command(client, &command);
    CHECK(command.kind == BERTH_GROW);
    CHECK(berth_grant_resize(grant, command.grant_bytes) == BERTH_OK);
    CHECK(berth_grant_bytes(grant) == command.grant_bytes && berth_grant_address(grant) == memory);
    memset(memory, 2, command.grant_bytes);
    berth_complete(client, command.id, NULL, 0);
    await_command(client, &command);
    CHECK(command.kind == BERTH_SHRINK && command.drop_kv == 0);
    CHECK(berth_grant_resize(grant, command.grant_bytes) == BERTH_OK);
    CHECK(memory[command.grant_bytes - 1] == 2);
    berth_complete(client, command.id, NULL, 4096);
    await_command(client, &command);
    CHECK(command.kind == BERTH_SHRINK);
    berth_complete(client, command.id, "the least is 4096", 4096);
    return 0;
}

static int check_commands(berth_client* client) {
    berth_command command;
    await_command(client, &command);
    CHECK(command.kind == BERTH_OFFLOAD && command.drop_kv == 1);
    berth_complete(client, command.id, NULL, 0);
    CHECK(!berth_must_yield(client));
    CHECK(berth_yield(client) == 1);
    return 0;
}

int main(int argc, char** argv) {
    berth_connect_options options;
    berth_client* client = NULL;
    berth_weights* weights = NULL;
    berth_grant* grant = NULL;
    CHECK(argc == 2);
    CHECK(berth_api_version() == BERTH_API_VERSION);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.mode = "sideways";
    CHECK(berth_connect(&options, &client) == BERTH_INVALID_ARGUMENT && client == NULL);
    options.mode = "client";
    options.socket = argv[1];
    options.instance = "c-engine";
    options.token = "secret";
    CHECK(berth_connect(&options, &client) == BERTH_OK);
    CHECK(berth_attach(client, NULL, progress, NULL, &weights) == BERTH_OK);
    CHECK(calls == 1);
    CHECK(berth_grant_create(client, 0, &grant) == BERTH_OK);
    CHECK(berth_grant_resize(grant, 8192) == BERTH_OK);
    memset(berth_grant_address(grant), 1, 8192);
    CHECK(berth_set_state(client, BERTH_READY, "http://127.0.0.1:1", NULL, NULL) == BERTH_OK);
    if (check_weights(weights) != 0 || check_sizes(client, grant) != 0 ||
        check_commands(client) != 0)
        return 1;
    berth_close(client);
    if (check_weights(weights) != 0)
        return 1;
    berth_grant_close(grant);
    berth_weights_close(weights);
    berth_weights_close(NULL);
    puts("ok");
    return 0;
}
