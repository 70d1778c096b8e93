/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches as a guest through the socket given and writes through the read-only mapping. It must
 * not live to say so. */
#include "engine_shim/client/berth.h"

#include <stdio.h>

int main(int argc, char** argv) {
    berth_connect_options options = {0};
    options.size = sizeof options;
    options.mode = "client";
    options.socket = argc > 1 ? argv[1] : NULL;
    options.program = "offender";
    berth_client* client = NULL;
    berth_weights* weights = NULL;
    berth_attach_options attach = {0};
    attach.size = sizeof attach;
    attach.model = "smollm2";
    berth_tensor tensor = {0};
    tensor.size = sizeof tensor;
    if (berth_connect(&options, &client) != BERTH_OK ||
        berth_attach(client, &attach, NULL, NULL, &weights) != BERTH_OK ||
        berth_tensor_at(weights, 0, &tensor) != BERTH_OK) {
        fprintf(stderr, "offender: %s\n", berth_error_message());
        return 2;
    }
    *(volatile char*)tensor.address = 1;
    fprintf(stderr, "offender: the write went through\n");
    return 3;
}
