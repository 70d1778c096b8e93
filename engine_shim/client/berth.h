/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * libberth: how an engine attaches to a node's shared weights, keeps memory within its grant, and
 * yields to higher classes. Plain C99; no exception leaves it.
 *
 * Conventions
 *  1. Functions that can fail return berth_status: BERTH_OK (0), or what kind of failure it was.
 *     berth_error_message() then says what was found, expected and to be done. The library owns
 * that text; it is the calling thread's own and valid until that thread's next failing call.
 *  2. Handles are opaque. Who gets one closes it, once; closing NULL does nothing. Weights and
 * grants stay valid after their client was closed.
 *  3. Out-parameters are written on success only.
 *  4. Structs begin with `size`: set it to sizeof the struct as you compiled it, the rest to 0 for
 *     the defaults. The library reads and writes no more than that, so that a struct may grow.
 *  5. Texts are UTF-8, NUL-terminated. Texts given to the library are copied; texts it gives belong
 *     to the handle they came from and live as long, unless a comment says otherwise.
 *  6. Calls on one handle may come from any thread. Close a handle only when no other call uses it.
 *  7. Addresses are the device's: to be read by the CPU on a host device, by kernels on a GPU.
 *     Weights are read-only: a write ends the process.
 *
 * Versions: BERTH_API_VERSION is 100 * major + minor. Minor rises with an addition, major with a
 * change that breaks callers. A program may use a library of the same major and the same or a later
 * minor: check berth_api_version() where the library is loaded at run time.
 */
#define BERTH_API_VERSION 107

#if defined(__GNUC__)
#define BERTH_EXPORT __attribute__((visibility("default")))
#else
#define BERTH_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum berth_status {
    BERTH_OK = 0,
    BERTH_INVALID_ARGUMENT = 1,
    BERTH_NOT_FOUND = 2,
    BERTH_ALREADY_EXISTS = 3,
    BERTH_FAILED_PRECONDITION = 4,
    BERTH_PERMISSION_DENIED = 5,
    BERTH_RESOURCE_EXHAUSTED = 6,
    BERTH_MISMATCH = 7,
    BERTH_UNAVAILABLE = 8,
    BERTH_DEADLINE_EXCEEDED = 9,
    BERTH_CORRUPT = 10,
    BERTH_IO = 11,
    BERTH_UNSUPPORTED = 12,
    BERTH_INTERNAL = 13
} berth_status;

typedef struct berth_client berth_client;
typedef struct berth_weights berth_weights;
typedef struct berth_grant berth_grant;

BERTH_EXPORT int berth_api_version(void);
BERTH_EXPORT const char* berth_error_message(void); /* "" before the first failure */

/* NULL members are taken from the environment: BERTH_MODE, BERTH_SOCKET, BERTH_INSTANCE,
 * BERTH_TOKEN, BERTH_MODEL_PATH, BERTH_DEVICE, BERTH_FALLBACK. */
typedef struct berth_connect_options {
    size_t size;
    const char* mode; /* "client": berthd must be there; "daemon": it is started, with the
                       * configuration that BERTH_CONFIG names, if it is not; "off": no berthd, this
                       * process loads from disk for itself */
    const char* socket;
    const char* instance;
    const char* token;
    const char* model_path;
    const char* device;
    const char* program;  /* for people: "my-engine 1.2" */
    uint64_t timeout_ms;  /* 0: 10 s */
    const char* fallback; /* "disk" or "fail": see berth_publish.h; since 101 */
} berth_connect_options;
BERTH_EXPORT berth_status berth_connect(const berth_connect_options* options /* may be NULL */,
                                        berth_client** client);
BERTH_EXPORT void berth_close(berth_client* client);

/* Which set: at most one of the first three; all NULL means the instance's own model. */
typedef struct berth_attach_options {
    size_t size;
    const char* model;
    const char* path; /* a checkpoint's folder */
    const char* weight_set;
    int resident_only; /* not 0: BERTH_NOT_FOUND instead of loading */
} berth_attach_options;
/* Called on the attaching thread; `phase` lives for the call. */
typedef void (*berth_progress)(void* context, const char* phase, uint64_t bytes_done,
                               uint64_t bytes_total);
/* Blocks until the set is mapped, which may take a load from disk. */
BERTH_EXPORT berth_status berth_attach(berth_client* client, const berth_attach_options* options,
                                       berth_progress progress, void* context,
                                       berth_weights** weights);
BERTH_EXPORT void berth_weights_close(berth_weights* weights);
BERTH_EXPORT const char* berth_weights_id(const berth_weights* weights);
BERTH_EXPORT const char* berth_weights_fingerprint(const berth_weights* weights);
BERTH_EXPORT const char* berth_weights_config_json(const berth_weights* weights);

typedef struct berth_tensor {
    size_t size;
    const char* name;
    const char* dtype; /* as safetensors names it: "BF16"; "opaque" for an unknown one */
    uint32_t rank;
    const uint64_t* shape;
    const void* address;  /* of the first element; NULL for a state (berth_publish.h) */
    uint64_t bytes;       /* of the storage, where it is a view of one */
    const char* alias_of; /* NULL for most */
} berth_tensor;
BERTH_EXPORT size_t berth_tensor_count(const berth_weights* weights);
BERTH_EXPORT berth_status berth_tensor_at(const berth_weights* weights, size_t index,
                                          berth_tensor* tensor); /* ascending by name */
BERTH_EXPORT berth_status berth_tensor_find(const berth_weights* weights, const char* name,
                                            berth_tensor* tensor);

/* What berthd lets this process have in all when it starts: a standby's is small at first. Resize
 * to it before Ready; commands change it later. 0 without a berthd: nobody limits it. Since 105. */
BERTH_EXPORT uint64_t berth_granted_bytes(const berth_client* client);
/* One stable address range of bytes_max (0: all that berthd allows), backed from its start.
 * Resizing also tells berthd what is mapped. */
BERTH_EXPORT berth_status berth_grant_create(berth_client* client, uint64_t bytes_max,
                                             berth_grant** grant);
BERTH_EXPORT berth_status berth_grant_resize(berth_grant* grant, uint64_t bytes);
BERTH_EXPORT void* berth_grant_address(const berth_grant* grant);
BERTH_EXPORT uint64_t berth_grant_bytes(const berth_grant* grant);
BERTH_EXPORT void berth_grant_close(berth_grant* grant);

#ifdef __cplusplus
}
#endif
#include "berth_loop.h"
#include "berth_publish.h"
