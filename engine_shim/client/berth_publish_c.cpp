// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/berth_publish.h"

#include "engine_shim/client/c_handles.h"

#include <fmt/format.h>

using namespace berth;
using namespace berth::c;

static_assert(static_cast<int>(TensorKind::kState) == BERTH_STATE);

struct berth_publication {
    std::shared_ptr<Client> client; // outlives what is below
    std::unique_ptr<Publication> publication;
};
struct berth_states {
    std::unique_ptr<StateCopies> copies;
};

namespace {

Status missing(const char* what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is NULL", what));
}

std::string text(const char* given) {
    return given != nullptr ? given : "";
}

Result<PublishTensor> tensor_of(const berth_publish_tensor& from) {
    berth_publish_tensor given = read_struct(&from);
    if (given.name == nullptr || given.dtype == nullptr)
        return fail(ErrorCode::kInvalidArgument, "a declared tensor has no name or no dtype");
    if (given.rank > kTensorRankMax || (given.rank > 0 && given.shape == nullptr))
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("tensor '{}' has {} dimensions{}; at most {} are possible",
                                given.name, given.rank,
                                given.shape == nullptr ? " and no shape" : "", kTensorRankMax));
    PublishTensor tensor;
    tensor.name = given.name;
    tensor.dtype = dtype_from(given.dtype);
    if (tensor.dtype == DType::kOpaque && std::string_view(given.dtype) != "opaque")
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("tensor '{}' has the unknown dtype '{}'; \"opaque\" carries bytes",
                                given.name, given.dtype));
    tensor.shape.assign(given.shape, given.shape + given.rank);
    if (given.strides != nullptr)
        tensor.strides.assign(given.strides, given.strides + given.rank);
    tensor.storage_offset = given.storage_offset;
    tensor.alias_of = text(given.alias_of);
    if (given.kind != BERTH_WEIGHT && given.kind != BERTH_STATE)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("tensor '{}' is neither weight nor state", given.name));
    tensor.kind = static_cast<TensorKind>(given.kind);
    tensor.opaque_bytes = given.opaque_bytes;
    return tensor;
}

} // namespace

berth_status berth_publish_begin(berth_client* client, const berth_publish_options* options,
                                 const berth_publish_tensor* tensors, size_t count,
                                 berth_progress progress, void* context,
                                 berth_publication** publication, berth_weights** weights) {
    return guarded([&]() -> Status {
        if (client == nullptr || options == nullptr || publication == nullptr ||
            weights == nullptr || (tensors == nullptr && count > 0))
            return missing("client, options, tensors, publication or weights");
        berth_publish_options given = read_struct(options);
        PublishRequest request;
        request.model = text(given.model);
        request.path = text(given.path);
        request.producer_name = text(given.producer_name);
        request.producer_version = text(given.producer_version);
        request.producer_recipe = text(given.producer_recipe);
        if (given.inputs_json != nullptr)
            request.inputs_json = given.inputs_json;
        request.config_json = text(given.config_json);
        request.find_only = given.find_only != 0;
        // An array of structs as large as the caller compiled them.
        const auto* at = reinterpret_cast<const std::byte*>(tensors);
        for (size_t i = 0; i < count; ++i) {
            const auto* one = reinterpret_cast<const berth_publish_tensor*>(at);
            BERTH_ASSIGN(PublishTensor tensor, tensor_of(*one));
            request.tensors.push_back(std::move(tensor));
            at += one->size;
        }
        ProgressCallback callback;
        if (progress != nullptr)
            callback = [&](const protocol::Progress& step) {
                progress(context, step.phase.c_str(), step.bytes_done, step.bytes_total);
            };
        BERTH_ASSIGN(PublishOutcome outcome, client->client->publish(request, callback));
        *publication = nullptr;
        *weights = nullptr;
        if (outcome.resident)
            *weights = handle_of(std::move(*outcome.resident)).release();
        else
            *publication = std::make_unique<berth_publication>(
                               berth_publication{client->client, std::move(outcome.publication)})
                               .release();
        return {};
    });
}

const char* berth_publish_id(const berth_publication* publication) {
    return publication->publication->weight_set().c_str();
}

berth_status berth_publish_storage(berth_publication* publication, const char* name, void** address,
                                   uint64_t* bytes) {
    return guarded([&]() -> Status {
        if (publication == nullptr || name == nullptr || address == nullptr)
            return missing("publication, name or address");
        BERTH_ASSIGN(std::span<std::byte> storage, publication->publication->storage(name));
        *address = storage.data();
        if (bytes != nullptr)
            *bytes = storage.size();
        return {};
    });
}

berth_status berth_publish_filled(berth_publication* publication, const char* name) {
    return guarded([&]() -> Status {
        if (publication == nullptr || name == nullptr)
            return missing("publication or name");
        return publication->publication->filled(name);
    });
}

berth_status berth_publish_write(berth_publication* publication, const char* name, uint64_t offset,
                                 const void* bytes, uint64_t count) {
    return guarded([&]() -> Status {
        if (publication == nullptr || name == nullptr || (bytes == nullptr && count > 0))
            return missing("publication, name or bytes");
        return publication->publication->write(name, offset,
                                               {static_cast<const std::byte*>(bytes), count});
    });
}

berth_status berth_publish_canary(berth_publication* publication, const void* input, uint64_t count,
                                  const char* sha256) {
    return guarded([&]() -> Status {
        if (publication == nullptr || sha256 == nullptr || (input == nullptr && count > 0))
            return missing("publication, input or sha256");
        return publication->publication->set_canary(
            std::string(static_cast<const char*>(input), count), sha256);
    });
}

berth_status berth_publish_seal(berth_publication* publication, berth_weights** weights) {
    return guarded([&]() -> Status {
        if (publication == nullptr || weights == nullptr)
            return missing(publication == nullptr ? "publication" : "weights");
        BERTH_ASSIGN(WeightSet set, publication->publication->seal());
        *weights = handle_of(std::move(set)).release();
        return {};
    });
}

void berth_publish_close(berth_publication* publication) {
    std::unique_ptr<berth_publication> closing(publication);
}

berth_status berth_tensor_layout_find(const berth_weights* weights, const char* name,
                                      berth_tensor_layout* layout) {
    return guarded([&]() -> Status {
        if (weights == nullptr || name == nullptr || layout == nullptr)
            return missing("weights, name or layout");
        BERTH_ASSIGN(TensorView view, weights->set.find(name));
        berth_tensor_layout out{};
        out.kind = static_cast<berth_tensor_kind>(view.kind);
        out.dense = view.strides.empty() ? 1 : 0;
        out.strides = view.strides.empty() ? nullptr : view.strides.data();
        out.storage_offset = view.storage_offset;
        out.storage_bytes = view.bytes;
        write_struct(layout, out);
        return {};
    });
}

berth_status berth_states_create(berth_client* client, const berth_weights* weights,
                                 berth_states** states) {
    return guarded([&]() -> Status {
        if (client == nullptr || weights == nullptr || states == nullptr)
            return missing("client, weights or states");
        BERTH_ASSIGN(auto copies, client->client->copy_states(weights->set));
        *states = std::make_unique<berth_states>(berth_states{std::move(copies)}).release();
        return {};
    });
}

void* berth_states_address(const berth_states* states, const char* name) {
    return states->copies->address(name);
}
uint64_t berth_states_bytes(const berth_states* states) {
    return states->copies->bytes();
}
void berth_states_close(berth_states* states) {
    std::unique_ptr<berth_states> closing(states);
}

berth_status berth_weights_canary(const berth_weights* weights, berth_canary* canary) {
    return guarded([&]() -> Status {
        if (weights == nullptr || canary == nullptr)
            return missing(weights == nullptr ? "weights" : "canary");
        ManifestCanary left = weights->set.canary();
        if (!left)
            return fail(ErrorCode::kNotFound,
                        fmt::format("weight set {} has no canary", weights->set.id()));
        berth_canary out{};
        out.input = left.input.data();
        out.input_bytes = left.input.size();
        out.sha256 = weights->canary_digest.c_str();
        out.required = weights->set.verify_canary() ? 1 : 0;
        write_struct(canary, out);
        return {};
    });
}

berth_status berth_canary_report(berth_client* client, const berth_weights* weights,
                                 const char* sha256) {
    return guarded([&]() -> Status {
        if (client == nullptr || weights == nullptr || sha256 == nullptr)
            return missing("client, weights or sha256");
        return client->client->report_canary(weights->set, sha256);
    });
}

const char* berth_weights_private(const berth_weights* weights) {
    return weights->set.private_reason().c_str();
}
