/* SPDX-License-Identifier: Apache-2.0 */
/* An engine with a loading pipeline of its own, as far as a node sees one: publishes a small set
 * through libberth, or attaches to it, step by step as its test says. Prints a line after each step
 * and goes on when a line comes on its input.
 *
 *   publisher SOCKET ACTION [NAME=VALUE]...
 *
 *   publish  begin, fill, seal, check     until=go|half|sealed: stops there; version=, model=,
 * fill= less     seals with one tensor unfilled other    declares another tensor under the same
 * inputs find     finds, publishes nothing attach   id=: attaches by id and checks what it sees
 *   engine   id=, digest=: lives as berthd's instance, reports the canary before it is Ready
 *   plain    attaches as BERTH_MODE and BERTH_FALLBACK say, path=
 */
#include "engine_shim/client/berth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d: %s is false; last error: %s\n", __LINE__, #condition,                 \
                   berth_error_message());                                                         \
            fflush(stdout);                                                                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int argument_count;
static char** arguments;

static const char* argument(const char* name, const char* fallback) {
    size_t length = strlen(name);
    for (int i = 3; i < argument_count; ++i)
        if (strncmp(arguments[i], name, length) == 0 && arguments[i][length] == '=')
            return arguments[i] + length + 1;
    return fallback;
}

static void say(const char* what, const char* more) {
    printf("%s %s\n", what, more);
    fflush(stdout);
}

static void await_line(void) {
    char line[64];
    (void)!fgets(line, sizeof line, stdin);
}

static const char* const kDigest =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
static const char* const kInput = "[1, 2, 3]";

/* qkv: a storage of 6 x 4 floats; q and v are rows of it, kt is a transposed view, count is a
 * state, half of it again under another name. */
static const uint64_t kQkv[2] = {6, 4};
static const uint64_t kRows[2] = {2, 4};
static const uint64_t kTransposed[2] = {4, 2};
static const uint64_t kTransposedStrides[2] = {1, 4};
static const uint64_t kCount[1] = {8};
static const uint64_t kHalf[1] = {4};
static const uint64_t kLarge[1] = {3000000};

static size_t declare(berth_publish_tensor* tensors) {
    memset(tensors, 0, 8 * sizeof *tensors);
    for (size_t i = 0; i < 8; ++i)
        tensors[i].size = sizeof *tensors;
    tensors[0] = (berth_publish_tensor){sizeof *tensors, "qkv", "F32", 2, kQkv, NULL, 0, NULL,
                                        BERTH_WEIGHT,    0};
    tensors[1] = (berth_publish_tensor){sizeof *tensors, "q",          "F32", 2, kRows, NULL, 0,
                                        "qkv",           BERTH_WEIGHT, 0};
    tensors[2] = (berth_publish_tensor){sizeof *tensors, "v",          "F32", 2, kRows, NULL, 16,
                                        "qkv",           BERTH_WEIGHT, 0};
    tensors[3] = (berth_publish_tensor){
        sizeof *tensors, "kt",         "F32", 2, kTransposed, kTransposedStrides, 8,
        "qkv",           BERTH_WEIGHT, 0};
    tensors[4] = (berth_publish_tensor){sizeof *tensors, "count", "I64", 1, kCount, NULL, 0, NULL,
                                        BERTH_STATE,     0};
    tensors[5] = (berth_publish_tensor){sizeof *tensors, "count.half", "I64", 1, kHalf, NULL, 4,
                                        "count",         BERTH_STATE,  0};
    tensors[6] = (berth_publish_tensor){sizeof *tensors, "large", "BF16", 1, kLarge, NULL, 0, NULL,
                                        BERTH_WEIGHT,    0};
    return 7;
}

static berth_status begin(berth_client* client, size_t count, const berth_publish_tensor* tensors,
                          berth_publication** publication, berth_weights** weights) {
    berth_publish_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.model = argument("model", "tiny");
    options.producer_name = "publisher";
    options.producer_version = argument("version", "1");
    options.inputs_json = argument("inputs", "{\"seed\": 7}");
    options.find_only = strcmp(arguments[2], "find") == 0;
    return berth_publish_begin(client, &options, tensors, count, NULL, NULL, publication, weights);
}

static int check_set(berth_client* client, const berth_weights* weights) {
    berth_tensor tensor = {0};
    tensor.size = sizeof tensor;
    berth_tensor_layout layout = {0};
    layout.size = sizeof layout;
    float first = (float)strtol(argument("fill", "0"), NULL, 10);
    CHECK(berth_tensor_count(weights) == 7);
    CHECK(berth_tensor_find(weights, "qkv", &tensor) == BERTH_OK);
    const float* base = tensor.address;
    for (int i = 0; i < 24; ++i)
        CHECK(base[i] == first + (float)i);
    CHECK(berth_tensor_find(weights, "q", &tensor) == BERTH_OK && tensor.address == base);
    CHECK(strcmp(tensor.alias_of, "qkv") == 0 && tensor.shape[0] == 2);
    CHECK(berth_tensor_find(weights, "v", &tensor) == BERTH_OK && tensor.address == base + 16);
    CHECK(berth_tensor_layout_find(weights, "v", &layout) == BERTH_OK);
    CHECK(layout.storage_offset == 16 && layout.storage_bytes == 96);
    CHECK(berth_tensor_find(weights, "kt", &tensor) == BERTH_OK && tensor.address == base + 8);
    CHECK(berth_tensor_layout_find(weights, "kt", &layout) == BERTH_OK);
    CHECK(!layout.dense && layout.strides[0] == 1 && layout.strides[1] == 4);
    CHECK(berth_tensor_layout_find(weights, "large", &layout) == BERTH_OK && layout.dense);

    /* States: no address in the set, a private copy each time. */
    CHECK(berth_tensor_find(weights, "count", &tensor) == BERTH_OK && tensor.address == NULL);
    berth_states *mine = NULL, *others = NULL;
    CHECK(berth_states_create(client, weights, &mine) == BERTH_OK);
    int64_t* count = berth_states_address(mine, "count");
    CHECK(count[0] == 100 && count[7] == 107);
    CHECK(berth_states_address(mine, "count.half") == count + 4);
    CHECK(berth_states_address(mine, "qkv") == NULL);
    count[5] = -1;
    CHECK(berth_states_create(client, weights, &others) == BERTH_OK);
    CHECK(((int64_t*)berth_states_address(others, "count"))[5] == 105);
    berth_states_close(mine);
    berth_states_close(others);

    berth_canary canary = {0};
    canary.size = sizeof canary;
    CHECK(berth_weights_canary(weights, &canary) == BERTH_OK);
    CHECK(canary.input_bytes == strlen(kInput));
    CHECK(memcmp(canary.input, kInput, strlen(kInput)) == 0);
    CHECK(strcmp(canary.sha256, kDigest) == 0);
    return 0;
}

static int fill(berth_publication* publication, int all) {
    void* address = NULL;
    uint64_t bytes = 0;
    int64_t count[8];
    CHECK(berth_publish_storage(publication, "v", &address, &bytes) == BERTH_OK && bytes == 96);
    for (int i = 0; i < 24; ++i)
        ((float*)address)[i] = (float)(strtol(argument("fill", "0"), NULL, 10) + i);
    CHECK(berth_publish_filled(publication, "qkv") == BERTH_OK);
    for (int i = 0; i < 8; ++i)
        count[i] = 100 + i;
    CHECK(berth_publish_write(publication, "count", 0, count, sizeof count) == BERTH_OK);
    if (!all)
        return 0;
    CHECK(berth_publish_write(publication, "nowhere", 0, count, 1) == BERTH_NOT_FOUND);
    CHECK(berth_publish_write(publication, "count", 8, count, sizeof count) ==
          BERTH_INVALID_ARGUMENT);
    CHECK(berth_publish_storage(publication, "large", &address, &bytes) == BERTH_OK);
    memset(address, 5, bytes);
    CHECK(berth_publish_filled(publication, "large") == BERTH_OK);
    CHECK(berth_publish_canary(publication, kInput, strlen(kInput), "short") ==
          BERTH_INVALID_ARGUMENT);
    CHECK(berth_publish_canary(publication, kInput, strlen(kInput), kDigest) == BERTH_OK);
    return 0;
}

static int stops_at(const char* step) {
    return strcmp(argument("until", ""), step) == 0;
}

static int publish(berth_client* client) {
    berth_publish_tensor tensors[8];
    size_t count = declare(tensors);
    berth_publication* publication = NULL;
    berth_weights* weights = NULL;
    if (strcmp(arguments[2], "other") == 0)
        tensors[6].dtype = "F16";
    if (begin(client, count, tensors, &publication, &weights) != BERTH_OK) {
        say("refused", berth_error_message());
        return 2;
    }
    CHECK((publication == NULL) != (weights == NULL));
    if (publication != NULL) {
        say("go", berth_publish_id(publication));
        if (stops_at("go"))
            await_line();
        if (fill(publication, 0) != 0)
            return 1;
        if (stops_at("half")) {
            say("half", "");
            await_line();
        }
        if (strcmp(arguments[2], "less") == 0) {
            CHECK(berth_publish_seal(publication, &weights) == BERTH_FAILED_PRECONDITION);
            say("less", berth_error_message());
            berth_publish_close(publication);
            await_line();
            return 0;
        }
        if (fill(publication, 1) != 0)
            return 1;
        if (berth_publish_seal(publication, &weights) != BERTH_OK) {
            say("refused", berth_error_message());
            return 2;
        }
        berth_publish_close(publication);
        say("sealed", berth_weights_id(weights));
    } else {
        say("resident", berth_weights_id(weights));
    }
    if (check_set(client, weights) != 0)
        return 1;
    say("checked", "");
    await_line();
    berth_weights_close(weights);
    return 0;
}

static int attach(berth_client* client, berth_weights** weights) {
    berth_attach_options options = {0};
    options.size = sizeof options;
    options.weight_set = argument("id", NULL);
    options.path = argument("path", NULL);
    if (berth_attach(client, &options, NULL, NULL, weights) == BERTH_OK)
        return 0;
    say("refused", berth_error_message());
    return 2;
}

static int live(berth_client* client) {
    berth_weights* weights = NULL;
    berth_command command = {0};
    command.size = sizeof command;
    berth_canary canary = {0};
    canary.size = sizeof canary;
    if (attach(client, &weights) != 0)
        return 2;
    if (argument("id", NULL) != NULL) {
        CHECK(berth_weights_canary(weights, &canary) == BERTH_OK);
        if (canary.required)
            CHECK(berth_set_state(client, BERTH_READY, NULL, NULL, NULL) ==
                  BERTH_FAILED_PRECONDITION);
        const char* digest = argument("digest", canary.sha256);
        /* One that says nothing is not believed either. */
        if (strcmp(digest, "none") != 0 &&
            berth_canary_report(client, weights, digest) != BERTH_OK) {
            say("canary", berth_error_message());
            berth_wait(client, 60000);
            return 3;
        }
    }
    berth_status ready = berth_set_state(client, BERTH_READY, NULL, NULL, NULL);
    say("ready", ready == BERTH_OK ? berth_weights_private(weights) : berth_error_message());
    for (;;) {
        if (!berth_next_command(client, &command)) {
            berth_wait(client, 1000);
            continue;
        }
        berth_complete(client, command.id, NULL, 0);
        if (command.kind == BERTH_STOP)
            return 0;
    }
}

int main(int argc, char** argv) {
    berth_connect_options options = {0};
    options.size = sizeof options;
    options.program = "publisher";
    berth_client* client = NULL;
    berth_weights* weights = NULL;
    argument_count = argc;
    arguments = argv;
    if (argc < 3)
        return 2;
    const int by_environment = strcmp(argv[2], "plain") == 0 || strcmp(argv[2], "engine") == 0;
    options.mode = by_environment ? NULL : "client";
    options.socket = strcmp(argv[1], "-") == 0 ? NULL : argv[1];
    options.model_path = argument("path", NULL);
    options.device = argument("device", by_environment ? NULL : "host-0");
    if (berth_connect(&options, &client) != BERTH_OK) {
        say("refused", berth_error_message());
        return 2;
    }
    int code = 0;
    /* A child that has all of this one's descriptors, the socket to berthd among them. */
    if (strcmp(argument("fork", "0"), "1") == 0 && fork() == 0)
        for (;;)
            pause();
    if (strcmp(argv[2], "engine") == 0)
        return live(client);
    if (strcmp(argv[2], "plain") == 0 || strcmp(argv[2], "attach") == 0) {
        code = attach(client, &weights);
        if (code == 0)
            say("attached", berth_weights_id(weights));
        if (code == 0 && strcmp(argv[2], "plain") == 0)
            say("private", berth_weights_private(weights));
        if (code == 0 && strcmp(argv[2], "attach") == 0)
            code = check_set(client, weights);
        if (code == 0) {
            say("checked", "");
            await_line();
        }
        berth_weights_close(weights);
    } else {
        code = publish(client);
    }
    berth_close(client);
    return code;
}
