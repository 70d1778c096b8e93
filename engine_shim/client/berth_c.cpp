// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/c_handles.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::c {

namespace {

thread_local std::string last_error;

// A member that the caller left out is the environment's.
void take(std::string& to, const char* from) {
    if (from != nullptr)
        to = from;
}

Result<ClientOptions> options_of(const berth_connect_options& given) {
    ClientOptions options;
    auto from_environment = ClientOptions::from_environment();
    if (from_environment)
        options = std::move(*from_environment);
    else if (given.mode == nullptr)
        return fail(from_environment.error());
    take(options.socket, given.socket);
    take(options.instance, given.instance);
    take(options.token, given.token);
    take(options.model_path, given.model_path);
    take(options.device, given.device);
    take(options.program, given.program);
    if (given.timeout_ms != 0)
        options.connect_timeout = std::chrono::milliseconds(
            std::min<uint64_t>(given.timeout_ms, uint64_t{24} * 3600 * 1000));
    if (given.fallback != nullptr) {
        std::string_view fallback = given.fallback;
        if (fallback != "disk" && fallback != "fail")
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("fallback is '{}'; it may be disk or fail", fallback));
        options.fallback = fallback == "disk" ? Fallback::kDisk : Fallback::kFail;
    }
    if (given.mode == nullptr)
        return options;
    std::string_view mode = given.mode;
    if (mode == "client")
        options.mode = AttachMode::kClient;
    else if (mode == "daemon")
        options.mode = AttachMode::kDaemon;
    else if (mode == "off")
        options.mode = AttachMode::kOff;
    else
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("mode is '{}'; it may be client, daemon or off", mode));
    return options;
}

Status missing(const char* what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is NULL", what));
}

void fill(const berth_weights& weights, size_t index, berth_tensor* tensor) {
    TensorView view = weights.set.manifest().at(index);
    berth_tensor out{};
    out.name = weights.names[index].c_str();
    out.dtype = weights.dtypes[index].c_str();
    out.rank = static_cast<uint32_t>(view.shape.size());
    out.shape = view.shape.data();
    out.address = weights.set.address(view);
    out.bytes = view.bytes;
    out.alias_of = weights.aliases[index].empty() ? nullptr : weights.aliases[index].c_str();
    write_struct(tensor, out);
}

} // namespace

std::unique_ptr<berth_weights> handle_of(WeightSet set) {
    auto handle = std::make_unique<berth_weights>();
    handle->set = std::move(set);
    const Manifest& manifest = handle->set.manifest();
    handle->config = manifest.config_json();
    for (size_t i = 0; i < manifest.size(); ++i) {
        TensorView view = manifest.at(i);
        handle->names.emplace_back(view.name);
        handle->aliases.emplace_back(view.alias_of);
        handle->dtypes.emplace_back(to_string(view.dtype));
    }
    handle->canary_digest = manifest.canary().digest;
    return handle;
}

berth_status record(const Error& error) {
    try {
        last_error = error.message;
    } catch (...) {
        last_error.clear();
    }
    return static_cast<berth_status>(static_cast<int>(error.code) + 1);
}
static_assert(static_cast<int>(ErrorCode::kInternal) + 1 == BERTH_INTERNAL);
static_assert(static_cast<int>(ErrorCode::kMismatch) + 1 == BERTH_MISMATCH);

} // namespace berth::c

using namespace berth;
using namespace berth::c;

int berth_api_version(void) {
    return BERTH_API_VERSION;
}
const char* berth_error_message(void) {
    return last_error.c_str();
}

berth_status berth_connect(const berth_connect_options* options, berth_client** client) {
    return guarded([&]() -> Status {
        if (client == nullptr)
            return missing("client");
        BERTH_ASSIGN(ClientOptions made, options_of(read_struct(options)));
        BERTH_ASSIGN(auto connected, Client::connect(std::move(made)));
        *client = std::make_unique<berth_client>(berth_client{std::move(connected)}).release();
        return {};
    });
}

void berth_close(berth_client* client) {
    std::unique_ptr<berth_client> closing(client);
}

berth_status berth_attach(berth_client* client, const berth_attach_options* options,
                          berth_progress progress, void* context, berth_weights** weights) {
    return guarded([&]() -> Status {
        if (client == nullptr || weights == nullptr)
            return missing(client == nullptr ? "client" : "weights");
        berth_attach_options given = read_struct(options);
        AttachRequest request;
        take(request.model, given.model);
        take(request.path, given.path);
        take(request.weight_set, given.weight_set);
        request.wait = given.resident_only == 0;
        ProgressCallback callback;
        if (progress != nullptr)
            callback = [&](const protocol::Progress& step) {
                progress(context, step.phase.c_str(), step.bytes_done, step.bytes_total);
            };
        BERTH_ASSIGN(WeightSet set, client->client->attach(request, callback));
        *weights = handle_of(std::move(set)).release();
        return {};
    });
}

void berth_weights_close(berth_weights* weights) {
    std::unique_ptr<berth_weights> closing(weights);
}
const char* berth_weights_id(const berth_weights* weights) {
    return weights->set.id().c_str();
}
const char* berth_weights_fingerprint(const berth_weights* weights) {
    return weights->set.fingerprint().c_str();
}
const char* berth_weights_config_json(const berth_weights* weights) {
    return weights->config.c_str();
}
size_t berth_tensor_count(const berth_weights* weights) {
    return weights->names.size();
}

berth_status berth_tensor_at(const berth_weights* weights, size_t index, berth_tensor* tensor) {
    return guarded([&]() -> Status {
        if (weights == nullptr || tensor == nullptr)
            return missing(weights == nullptr ? "weights" : "tensor");
        if (index >= weights->names.size())
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("tensor {} was asked for, the set has {}", index,
                                    weights->names.size()));
        fill(*weights, index, tensor);
        return {};
    });
}

berth_status berth_tensor_find(const berth_weights* weights, const char* name,
                               berth_tensor* tensor) {
    return guarded([&]() -> Status {
        if (weights == nullptr || name == nullptr || tensor == nullptr)
            return missing(weights == nullptr ? "weights" : name == nullptr ? "name" : "tensor");
        BERTH_TRY(weights->set.find(name));
        fill(*weights, static_cast<size_t>(weights->set.manifest().find(name)), tensor);
        return {};
    });
}

uint64_t berth_granted_bytes(const berth_client* client) {
    return client->client->welcome().grant_bytes;
}

berth_status berth_grant_create(berth_client* client, uint64_t bytes_max, berth_grant** grant) {
    return guarded([&]() -> Status {
        if (client == nullptr || grant == nullptr)
            return missing(client == nullptr ? "client" : "grant");
        BERTH_ASSIGN(auto arena, client->client->create_grant(bytes_max));
        *grant =
            std::make_unique<berth_grant>(berth_grant{client->client, std::move(arena)}).release();
        return {};
    });
}

berth_status berth_grant_resize(berth_grant* grant, uint64_t bytes) {
    return guarded([&]() -> Status {
        if (grant == nullptr)
            return missing("grant");
        Status resized = grant->arena->resize(bytes);
        if (auto client = grant->client.lock())
            client->counters().grant_bytes = grant->arena->bytes();
        return resized;
    });
}

void* berth_grant_address(const berth_grant* grant) {
    return grant->arena->data();
}
uint64_t berth_grant_bytes(const berth_grant* grant) {
    return grant->arena->bytes();
}
void berth_grant_close(berth_grant* grant) {
    std::unique_ptr<berth_grant> closing(grant);
    if (closing)
        if (auto client = closing->client.lock())
            client->counters().grant_bytes = 0;
}
