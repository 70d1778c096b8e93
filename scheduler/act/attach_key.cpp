// SPDX-License-Identifier: Apache-2.0
// Which weights an Attach means: by the instance, by a Model's name, by a checkpoint's folder.
#include "scheduler/act/attach_desk.h"

#include <fmt/format.h>

#include <filesystem>

namespace berth {

namespace {

std::string normal_path(const std::string& path) {
    std::string normal = std::filesystem::path(path).lexically_normal().string();
    while (normal.size() > 1 && normal.back() == '/')
        normal.pop_back();
    return normal;
}

} // namespace

Result<node::LoadKey> AttachDesk::key_of(const Attacher& who,
                                         const protocol::Attach& request) const {
    const node::NodeState& state = context_.state();
    const policies::ModelSpec* model = nullptr;
    node::DeviceId device(request.device);
    uint32_t ranks = 1;
    if (auto found = state.instances.find(who.instance); found != state.instances.end()) {
        const node::Instance& instance = found->second;
        ranks = instance.ranks;
        if (request.model.empty() && request.path.empty())
            model = state.documents.find_model(instance.spec.model);
        if (device.empty() && who.rank < instance.devices.size())
            device = instance.devices[who.rank];
    }
    if (!request.model.empty()) {
        model = state.documents.find_model(request.model);
        if (model == nullptr)
            return fail(ErrorCode::kNotFound,
                        fmt::format("no Model is named '{}': name one of the policy's, or give the "
                                    "checkpoint's folder as path",
                                    request.model),
                        "UnknownModel");
    }
    std::string path = model != nullptr ? model->path : normal_path(request.path);
    if (model == nullptr && !request.path.empty())
        for (const policies::ModelSpec& one : state.documents.models)
            if (normal_path(one.path) == path && one.tensor_parallel == ranks)
                model = &one;
    if (model != nullptr && model->tensor_parallel != ranks)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("Model '{}' is of {} ranks (tensorParallel), {} is of {}: each "
                                "rank of an instance of it attaches to its own part",
                                model->name, model->tensor_parallel, who.holder, ranks),
                    "RanksDiffer");
    if (path.empty() || (model == nullptr && request.path.empty()))
        return fail(ErrorCode::kInvalidArgument,
                    "attach names neither a model, nor a path, nor a weight set");
    if (model != nullptr)
        path = model->path;
    node::LoadKey key;
    key.path = path;
    if (model != nullptr) {
        key.dtype = model->dtype;
        key.quantization = model->quantization;
        key.rank = who.rank;
        key.ranks = model->tensor_parallel;
    }
    if (device.empty()) {
        // Where it lies already, else the node's first device.
        for (const node::DeviceId& id : context_.device_order) {
            key.device = id;
            if (node::resident(state, key) != nullptr)
                device = id;
        }
        if (device.empty() && !context_.device_order.empty())
            device = context_.device_order.front();
    }
    if (device.value == "cuda")
        for (const auto& [id, environment] : context_.environments)
            if (environment.device_kind == "cuda") {
                device = id;
                break;
            }
    if (!state.devices.contains(device))
        return fail(ErrorCode::kNotFound, fmt::format("this node has no device '{}'", device.value),
                    "UnknownDevice");
    key.device = device;
    return key;
}

} // namespace berth
