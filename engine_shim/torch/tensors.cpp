// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/torch/tensors.h"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <dlfcn.h>
#include <filesystem>
#include <mutex>

namespace berth {

namespace {

Status open_library() {
    // The file that holds ATen in this process; its folder is libtorch's.
    Dl_info where{};
    if (::dladdr(reinterpret_cast<const void*>(&at::globalContext), &where) == 0 ||
        where.dli_fname == nullptr)
        return fail(ErrorCode::kInternal, "the dynamic loader does not know where libtorch_cpu is");
    std::filesystem::path path =
        std::filesystem::path(where.dli_fname).replace_filename("libtorch_cuda.so");
    if (::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
        const char* why = ::dlerror();
        return fail(ErrorCode::kUnsupported,
                    fmt::format("a cuda device needs {}, which cannot be opened: {}. Install the "
                                "CUDA build of torch with its nvidia packages, or choose a host "
                                "device",
                                path.string(), why != nullptr ? why : "unknown"));
    }
    return {};
}

Result<std::vector<int64_t>> signed_shape(const TensorView& tensor) {
    std::vector<int64_t> shape;
    for (uint64_t extent : tensor.shape) {
        if (extent > uint64_t{INT64_MAX})
            return fail(ErrorCode::kCorrupt,
                        fmt::format("tensor '{}' has a dimension of {}", tensor.name, extent));
        shape.push_back(static_cast<int64_t>(extent));
    }
    return shape;
}

// On cuda the target device is said, so that torch asks the driver nothing about the address.
at::Tensor view(std::byte* data, at::IntArrayRef shape, at::OptionalIntArrayRef strides,
                at::ScalarType type, const at::Device& device) {
    return at::for_blob(data, shape)
        .strides(strides)
        .options(at::TensorOptions().dtype(type).device(device))
        .target_device(device)
        .make_tensor();
}

} // namespace

Status open_cuda_libraries() {
    static std::mutex mutex;
    static bool opened = false;
    std::lock_guard lock(mutex);
    if (opened)
        return {};
    BERTH_TRY(open_library());
    opened = true;
    return {};
}

Status load_cuda_libraries() {
    BERTH_TRY(open_cuda_libraries());
    if (!at::globalContext().hasCUDA())
        return fail(ErrorCode::kUnsupported,
                    "torch's libraries for CUDA are open and find no usable GPU: look at the "
                    "driver, and at CUDA_VISIBLE_DEVICES");
    return {};
}

Result<at::Device> torch_device(const Device& device) {
    if (device.capabilities().kind == DeviceKind::kHost)
        return at::Device(at::kCPU);
    BERTH_TRY(load_cuda_libraries());
    // berthd shows an engine one GPU alone.
    return at::Device(at::kCUDA, 0);
}

Result<at::ScalarType> scalar_type_of(DType dtype) {
    switch (dtype) {
    case DType::kF64:
        return at::kDouble;
    case DType::kF32:
        return at::kFloat;
    case DType::kF16:
        return at::kHalf;
    case DType::kBF16:
        return at::kBFloat16;
    case DType::kF8E4M3:
        return at::kFloat8_e4m3fn;
    case DType::kF8E5M2:
        return at::kFloat8_e5m2;
    case DType::kI64:
        return at::kLong;
    case DType::kI32:
        return at::kInt;
    case DType::kI16:
        return at::kShort;
    case DType::kI8:
        return at::kChar;
    case DType::kU8:
        return at::kByte;
    case DType::kBool:
        return at::kBool;
    case DType::kU16:
        return at::kUInt16;
    case DType::kU32:
        return at::kUInt32;
    case DType::kU64:
        return at::kUInt64;
    case DType::kF8E8M0:
    case DType::kF4:
    case DType::kOpaque:
        break;
    }
    return fail(ErrorCode::kUnsupported,
                fmt::format("torch tensors of dtype {} are not made here; read its bytes",
                            to_string(dtype)));
}

Result<at::Tensor> tensor_of(const WeightSet& weights, const TensorView& tensor,
                             const at::Device& device) {
    auto type = scalar_type_of(tensor.dtype);
    if (!type)
        return fail_in(fmt::format("tensor '{}'", tensor.name), type.error());
    BERTH_ASSIGN(std::vector<int64_t> shape, signed_shape(tensor));
    if (tensor.kind == TensorKind::kState)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("tensor '{}' is state, which is not mapped: take a copy of it",
                                tensor.name),
                    "NotMapped");
    std::vector<int64_t> strides;
    for (uint64_t stride : tensor.strides)
        strides.push_back(static_cast<int64_t>(stride)); // checked when the manifest was opened
    // from_blob takes a writable pointer; the mapping behind it is read-only.
    auto* data =
        const_cast<std::byte*>(weights.address(tensor)) + (tensor.first_byte() - tensor.offset);
    return view(data, shape,
                strides.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(strides),
                *type, device);
}

Result<at::Tensor> tensor_in(const GrantArena& arena, uint64_t offset,
                             std::span<const int64_t> shape, at::ScalarType type,
                             const at::Device& device) {
    uint64_t bytes = c10::elementSize(type);
    for (int64_t extent : shape)
        if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes))
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("dimension {} of a tensor's shape is not possible", extent));
    if (offset > arena.bytes_max() || bytes > arena.bytes_max() - offset)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("a tensor of {} bytes at offset {} does not fit in a grant of {}",
                                bytes, offset, arena.bytes_max()));
    if (offset % c10::elementSize(type) != 0)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("offset {} is not aligned to elements of {} bytes", offset,
                                c10::elementSize(type)));
    return view(arena.data() + offset, at::IntArrayRef(shape.data(), shape.size()), {}, type,
                device);
}

} // namespace berth
