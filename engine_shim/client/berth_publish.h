/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "berth.h"

/*
 * The part of berth.h for engines that have a loading pipeline of their own; its conventions hold
 * here. Since BERTH_API_VERSION 101.
 *
 *     berth_publish_begin(client, &options, tensors, count, NULL, NULL, &publication, &weights);
 *     if (publication != NULL) {            we are the one who makes it
 *         for each storage: berth_publish_storage() and fill it, then berth_publish_filled();
 *                           or berth_publish_write() from host memory
 *         berth_publish_canary(...);        optional
 *         berth_publish_seal(publication, &weights);
 *         berth_publish_close(publication);
 *     }
 *     weights: mapped read-only, the same for all who publish the same inputs
 *
 * Fallback (BERTH_FALLBACK, or `fallback` of berth_connect_options): what berth_connect and
 * berth_attach do where no shared set may be used, since it was made for another configuration
 * (BERTH_MISMATCH) or, for a guest, since berthd is not there:
 *     disk  load from disk for this process alone, with a warning that names each field that
 *           differs; where berthd is there it counts the bytes, or refuses them. Default of mode
 *           "daemon".
 *     fail  the error. Default of mode "client"; an instance's is its policy's attach.onMismatch.
 * berth_weights_private() tells which it was. A set asked for by id is never replaced.
 */
#ifdef __cplusplus
extern "C" {
#endif

typedef enum berth_tensor_kind {
    BERTH_WEIGHT = 0, /* mapped read-only into every attacher */
    BERTH_STATE = 1   /* kept as a template: berth_states_create() gives private copies */
} berth_tensor_kind;

/* One tensor as the publisher declares it. */
typedef struct berth_publish_tensor {
    size_t size;
    const char* name;
    const char* dtype; /* as in berth_tensor */
    uint32_t rank;     /* at most 8 */
    const uint64_t* shape;
    const uint64_t* strides; /* in elements; NULL: dense, in the order of the shape */
    uint64_t storage_offset; /* in elements */
    const char* alias_of;    /* the tensor in whose storage it lies; NULL: its own storage */
    berth_tensor_kind kind;
    uint64_t opaque_bytes; /* of the storage, where dtype is "opaque" */
} berth_publish_tensor;

typedef struct berth_publish_options {
    size_t size;
    const char* model;            /* a name; may be NULL */
    const char* path;             /* what it is made from on disk; may be NULL */
    const char* producer_name;    /* "vllm" */
    const char* producer_version; /* another version makes other bytes */
    const char* producer_recipe;  /* how: "fp8-marlin"; may be NULL */
    const char* inputs_json; /* an object: all else that decides about the bytes; may be NULL */
    const char* config_json; /* for attachers, see berth_weights_config_json(); may be NULL */
    int find_only; /* not 0: BERTH_NOT_FOUND, naming what differs from the nearest set, instead of a
                    * publication; tensors may then be none */
} berth_publish_options;

typedef struct berth_publication berth_publication;

/* Sets exactly one of the two, the other to NULL: a publication to be filled, or the set, when
 * somebody has published the same inputs. Waits while another publisher of it is at work. The
 * device's memory is asked for first: BERTH_RESOURCE_EXHAUSTED says what is missing. */
BERTH_EXPORT berth_status berth_publish_begin(berth_client* client,
                                              const berth_publish_options* options,
                                              const berth_publish_tensor* tensors, size_t count,
                                              berth_progress progress, void* context,
                                              berth_publication** publication,
                                              berth_weights** weights);
BERTH_EXPORT const char* berth_publish_id(const berth_publication* publication);
/* The storage of a tensor: its address in this process's (device's) memory and its bytes. On a GPU
 * work that fills it must have been given to the device before berth_publish_seal(), which waits
 * for it. */
BERTH_EXPORT berth_status berth_publish_storage(berth_publication* publication, const char* name,
                                                void** address, uint64_t* bytes);
BERTH_EXPORT berth_status berth_publish_filled(berth_publication* publication, const char* name);
/* From host memory. Writing the whole storage in one call counts as filled. */
BERTH_EXPORT berth_status berth_publish_write(berth_publication* publication, const char* name,
                                              uint64_t offset, const void* bytes, uint64_t count);
/* An input, and the SHA-256 (64 lower-case digits) of what this engine makes of it. */
BERTH_EXPORT berth_status berth_publish_canary(berth_publication* publication, const void* input,
                                               uint64_t count, const char* sha256);
/* BERTH_FAILED_PRECONDITION, with names, while something declared is not filled: the publication
 * stays open. After any other failure it is over and nothing is left of it. */
BERTH_EXPORT berth_status berth_publish_seal(berth_publication* publication,
                                             berth_weights** weights);
/* Gives up what was not sealed. Close it before its client. */
BERTH_EXPORT void berth_publish_close(berth_publication* publication);

/* How a tensor of a set lies in its storage; berth_tensor.address is its first element's, NULL for
 * a state. */
typedef struct berth_tensor_layout {
    size_t size;
    berth_tensor_kind kind;
    int dense;               /* not 0: strides follow from the shape */
    const uint64_t* strides; /* rank of them, in elements; NULL where dense */
    uint64_t storage_offset; /* in elements */
    uint64_t storage_bytes;
} berth_tensor_layout;
BERTH_EXPORT berth_status berth_tensor_layout_find(const berth_weights* weights, const char* name,
                                                   berth_tensor_layout* layout);

/* Private, writable copies of all states of a set, made from their template; aliases share a copy.
 * Their memory is the caller's to account for within its grant. */
typedef struct berth_states berth_states;
BERTH_EXPORT berth_status berth_states_create(berth_client* client, const berth_weights* weights,
                                              berth_states** states);
/* NULL for a name that is no state. */
BERTH_EXPORT void* berth_states_address(const berth_states* states, const char* name);
BERTH_EXPORT uint64_t berth_states_bytes(const berth_states* states);
BERTH_EXPORT void berth_states_close(berth_states* states);

/* What the set's publisher left. BERTH_NOT_FOUND: nothing. */
typedef struct berth_canary {
    size_t size;
    const void* input; /* belongs to the weights */
    uint64_t input_bytes;
    const char* sha256; /* expected */
    int required;       /* not 0: the policy lets this instance be Ready only after it */
} berth_canary;
BERTH_EXPORT berth_status berth_weights_canary(const berth_weights* weights, berth_canary* canary);
/* What the input gave here. BERTH_MISMATCH, with both digests in the message: this engine must not
 * serve; an instance is ended with the reason CanaryMismatch. */
BERTH_EXPORT berth_status berth_canary_report(berth_client* client, const berth_weights* weights,
                                              const char* sha256);
/* "" when the set is shared; else why this process has its own: "ModeOff", "DaemonAbsent",
 * "FingerprintMismatch". */
BERTH_EXPORT const char* berth_weights_private(const berth_weights* weights);

#ifdef __cplusplus
}
#endif
