// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/cuda_queue.h"

#include "engine_shim/reference/fast/buffers.h"
#include "engine_shim/reference/fast/cuda_api.h"
#include "engine_shim/reference/fast/gated_graph.h"
#include "engine_shim/reference/fast/kernel_image.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace berth::engine::fast {

namespace {

// cuBLAS's numbers for what is used here.
constexpr int kTransposed = 1;
constexpr int kPlain = 0;
constexpr int kTypeBf16 = 14;
constexpr int kTypeFloat = 0;
constexpr int kComputeFloat = 68;
constexpr int kDefaultAlgorithm = -1;

CUdeviceptr address(const void* at) {
    return reinterpret_cast<CUdeviceptr>(at);
}

class CudaGraph final : public RecordedGraph {
  public:
    CudaGraph(const CudaApi& api, CUcontext context, CUgraph graph, bool is_gated)
        : api_(api), context_(context), is_gated_(is_gated), graph_(graph) {}
    ~CudaGraph() override {
        (void)api_.ctx_set_current(context_);
        if (exec_ != nullptr)
            (void)api_.graph_exec_destroy(exec_);
        if (graph_ != nullptr)
            (void)api_.graph_destroy(graph_);
    }
    Status prepare() override {
        BERTH_TRY(api_.check(api_.ctx_set_current(context_), "cuCtxSetCurrent"));
        BERTH_TRY(
            api_.check(api_.graph_instantiate(&exec_, graph_, 0), "cuGraphInstantiateWithFlags"));
        if (!is_gated_) // whose sections' graphs are parts of it
            (void)api_.graph_destroy(std::exchange(graph_, nullptr));
        return {};
    }
    CUgraphExec exec() const { return exec_; }

  private:
    const CudaApi& api_;
    const CUcontext context_;
    const bool is_gated_;
    CUgraph graph_;
    CUgraphExec exec_ = nullptr;
};

class CudaQueue final : public Queue {
  public:
    explicit CudaQueue(const CudaApi& api) : api_(api) {}
    ~CudaQueue() override;
    Status open();
    Status use(const CudaQueueOptions& options);

    DeviceFacts facts() const override { return facts_; }
    Status launch(const Launch& launch) override;
    Status multiply(const LibraryProduct& product) override;
    Status attend_chunk(const ChunkAttention& attention) override {
        return attend_with_torch(*this, attention);
    }
    Status copy_in(void* device, const void* host, size_t bytes) override;
    Status copy_out(void* host, const void* device, size_t bytes) override;
    Status wait() override {
        return api_.check(api_.stream_synchronize(nullptr), "cuStreamSynchronize");
    }
    Result<std::byte*> host_buffer(size_t bytes) override;
    Status begin_recording() override;
    Result<std::unique_ptr<RecordedGraph>> end_recording() override;
    Result<std::unique_ptr<RecordedGraph>> record_gated(const GatedSections& sections) override;
    Result<const uint32_t*> share_word(const std::atomic<uint32_t>* word) override;
    Status start(RecordedGraph& graph) override;

  private:
    Status check_blas(int status, const char* call) const;
    Status use_stream(CUstream stream);
    Status read_facts();
    Status share_out_memory();

    const CudaApi& api_;
    CudaQueueOptions options_;
    CUdevice device_ = 0;
    DeviceFacts facts_;
    CUcontext context_ = nullptr;
    CUmodule module_ = nullptr;
    CUstream recording_stream_ = nullptr;
    CudaApi::BlasHandle blas_ = nullptr;
    bool recording_ = false;
    std::array<CUfunction, kKernels> functions_{};
    CUmodule look_module_ = nullptr;
    CUfunction look_ = nullptr;
    std::vector<void*> host_;
    std::vector<void*> registered_; // pages of others
};

CudaQueue::~CudaQueue() {
    if (context_ == nullptr)
        return;
    (void)api_.ctx_set_current(context_);
    (void)api_.stream_synchronize(nullptr);
    if (blas_ != nullptr)
        (void)api_.blas_destroy(blas_);
    if (recording_stream_ != nullptr)
        (void)api_.stream_destroy(recording_stream_);
    for (void* buffer : host_)
        (void)api_.host_free(buffer);
    for (void* page : registered_)
        (void)api_.host_unregister(page);
    for (CUmodule module : {module_, look_module_})
        if (module != nullptr)
            (void)api_.module_unload(module);
    (void)api_.primary_ctx_release(device_);
}

Status CudaQueue::open() {
    if (kernel_image().empty())
        return fail(ErrorCode::kUnsupported,
                    "this build has no kernels, because no usable nvcc was found when it was "
                    "configured",
                    "NoFastPath");
    BERTH_TRY(api_.check(api_.device_get(&device_, 0), "cuDeviceGet"));
    BERTH_TRY(api_.check(api_.primary_ctx_retain(&context_, device_), "cuDevicePrimaryCtxRetain"));
    BERTH_TRY(api_.check(api_.ctx_set_current(context_), "cuCtxSetCurrent"));
    const CUresult loaded = api_.module_load_data(&module_, kernel_image().data());
    if (loaded != CUDA_SUCCESS)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("{}: this build's kernels have no code for this GPU; configure it "
                                "with its architecture in BERTH_CUDA_ARCHITECTURES",
                                api_.check(loaded, "cuModuleLoadData").error().message),
                    "NoFastPath");
    for (uint32_t kernel = 0; kernel < kKernels; ++kernel)
        BERTH_TRY(api_.check(
            api_.module_get_function(&functions_[kernel], module_, kKernelNames[kernel].data()),
            kKernelNames[kernel].data()));
    if (!look_image().empty() &&
        api_.module_load_data(&look_module_, look_image().data()) == CUDA_SUCCESS)
        BERTH_TRY(
            api_.check(api_.module_get_function(&look_, look_module_, "berth_look"), "berth_look"));
    BERTH_TRY(read_facts());
    BERTH_TRY(share_out_memory());
    BERTH_TRY(api_.check(api_.stream_create(&recording_stream_, CU_STREAM_NON_BLOCKING),
                         "cuStreamCreate"));
    return check_blas(api_.blas_create(&blas_), "cublasCreate");
}

Status CudaQueue::read_facts() {
    const auto read = [this](CUdevice_attribute attribute, uint32_t& to) -> Status {
        int value = 0;
        BERTH_TRY(api_.check(api_.device_get_attribute(&value, attribute, device_),
                             "cuDeviceGetAttribute"));
        to = static_cast<uint32_t>(value);
        return {};
    };
    BERTH_TRY(read(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, facts_.multiprocessors));
    return read(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, facts_.shared_bytes);
}

// Where products stream through shared memory all kernels ask for the same division of the first
// cache: multiprocessors change it only when they are empty, and kernels could not overlap.
Status CudaQueue::share_out_memory() {
    const uint32_t largest = stream_shared_bytes(32, true);
    const auto set = [this](uint32_t kernel, CUfunction_attribute attribute, uint32_t value) {
        return api_.check(
            api_.func_set_attribute(functions_[kernel], attribute, static_cast<int>(value)),
            "cuFuncSetAttribute");
    };
    if (facts_.shared_bytes < largest)
        return {};
    for (uint32_t kernel = 0; kernel < kKernels; ++kernel) {
        BERTH_TRY(set(kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100));
        if (kernel >= kFirstStream)
            BERTH_TRY(set(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, largest));
    }
    return {};
}

Status CudaQueue::use(const CudaQueueOptions& options) {
    options_ = options;
    BERTH_TRY(api_.check(api_.ctx_set_current(context_), "cuCtxSetCurrent"));
    return use_stream(nullptr);
}

Status CudaQueue::check_blas(int status, const char* call) const {
    if (status == 0)
        return {};
    return fail(ErrorCode::kInternal,
                fmt::format("the model's step failed: {}: status {}", call, status), "StepFailed");
}

Status CudaQueue::use_stream(CUstream stream) {
    BERTH_TRY(check_blas(api_.blas_set_stream(blas_, stream), "cublasSetStream"));
    return check_blas(api_.blas_set_workspace(blas_, options_.library_workspace, kLibraryBytes),
                      "cublasSetWorkspace");
}

Status CudaQueue::launch(const Launch& launch) {
    CUlaunchAttribute overlap{};
    overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlap.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = launch.blocks[0];
    config.gridDimY = launch.blocks[1];
    config.gridDimZ = launch.blocks[2];
    config.blockDimX = launch.threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = launch.shared_bytes;
    config.hStream = recording_ ? recording_stream_ : nullptr;
    if (recording_ && launch.overlap) {
        config.attrs = &overlap;
        config.numAttrs = 1;
    }
    // Kernels have one parameter each, which the driver copies.
    void* arguments[] = {const_cast<void*>(launch.params)};
    const auto kernel = static_cast<size_t>(launch.kernel);
    return api_.check(api_.launch_kernel(&config, functions_[kernel], arguments, nullptr),
                      kKernelNames[kernel].data());
}

// cuBLAS counts along columns: what is row by row here is the transposed there.
Status CudaQueue::multiply(const LibraryProduct& p) {
    const float one = 1.0F;
    const float before = p.adds ? 1.0F : 0.0F;
    return check_blas(
        api_.blas_gemm(blas_, kTransposed, kPlain, static_cast<int>(p.n), static_cast<int>(p.m),
                       static_cast<int>(p.k), &one, p.weight, kTypeBf16, static_cast<int>(p.k), p.x,
                       kTypeBf16, static_cast<int>(p.k), &before, p.to,
                       p.to_bf16 ? kTypeBf16 : kTypeFloat, static_cast<int>(p.to_pitch),
                       kComputeFloat, kDefaultAlgorithm),
        "cublasGemmEx");
}

Status CudaQueue::copy_in(void* device, const void* host, size_t bytes) {
    BERTH_TRY(api_.check(api_.ctx_set_current(context_), "cuCtxSetCurrent"));
    return api_.check(api_.copy_in(address(device), host, bytes, nullptr), "cuMemcpyHtoDAsync");
}

Status CudaQueue::copy_out(void* host, const void* device, size_t bytes) {
    return api_.check(api_.copy_out(host, address(device), bytes, nullptr), "cuMemcpyDtoHAsync");
}

Result<std::byte*> CudaQueue::host_buffer(size_t bytes) {
    void* made = nullptr;
    BERTH_TRY(
        api_.check(api_.host_alloc(&made, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc"));
    host_.push_back(made);
    return static_cast<std::byte*>(made);
}

// Relaxed: nothing that is recorded allocates or copies on its own, and a library that still loads
// a kernel of its own meanwhile may.
Status CudaQueue::begin_recording() {
    BERTH_TRY(api_.check(api_.ctx_set_current(context_), "cuCtxSetCurrent"));
    BERTH_TRY(use_stream(recording_stream_));
    BERTH_TRY(api_.check(api_.begin_capture(recording_stream_, CU_STREAM_CAPTURE_MODE_RELAXED),
                         "cuStreamBeginCapture"));
    recording_ = true;
    return {};
}

Result<std::unique_ptr<RecordedGraph>> CudaQueue::end_recording() {
    recording_ = false;
    CUgraph graph = nullptr;
    const Status ended =
        api_.check(api_.end_capture(recording_stream_, &graph), "cuStreamEndCapture");
    BERTH_TRY(use_stream(nullptr));
    BERTH_TRY(ended);
    return std::make_unique<CudaGraph>(api_, context_, graph, false);
}

Result<std::unique_ptr<RecordedGraph>> CudaQueue::record_gated(const GatedSections& sections) {
    BERTH_TRY(api_.check(api_.ctx_set_current(context_), "cuCtxSetCurrent"));
    BERTH_TRY(use_stream(recording_stream_));
    recording_ = true;
    auto graph = build_gated({api_, context_, recording_stream_, look_}, sections);
    recording_ = false;
    BERTH_TRY(use_stream(nullptr));
    if (!graph)
        return fail(graph.error());
    return std::make_unique<CudaGraph>(api_, context_, *graph, true);
}

// Whole pages are what can be shared; the word's is, for as long as the queue lives.
Result<const uint32_t*> CudaQueue::share_word(const std::atomic<uint32_t>* word) {
    constexpr uintptr_t kPage = 4096;
    const auto at = reinterpret_cast<uintptr_t>(word);
    if (api_.host_register == nullptr || api_.host_device_pointer == nullptr)
        return fail(ErrorCode::kUnsupported, "the driver shares no host memory with the device");
    BERTH_TRY(api_.check(api_.ctx_set_current(context_), "cuCtxSetCurrent"));
    auto* page = reinterpret_cast<void*>(at / kPage * kPage);
    CUresult shared = api_.host_register(page, kPage, CU_MEMHOSTREGISTER_DEVICEMAP);
    if (shared != CUDA_SUCCESS && shared != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        shared = api_.host_register(page, kPage,
                                    CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY);
    if (shared == CUDA_SUCCESS)
        registered_.push_back(page);
    else if (shared != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        return fail(api_.check(shared, "cuMemHostRegister").error());
    CUdeviceptr seen = 0;
    BERTH_TRY(api_.check(api_.host_device_pointer(&seen, page, 0), "cuMemHostGetDevicePointer"));
    return reinterpret_cast<const uint32_t*>(seen + at % kPage);
}

Status CudaQueue::start(RecordedGraph& graph) {
    return api_.check(api_.graph_launch(static_cast<CudaGraph&>(graph).exec(), nullptr),
                      "cuGraphLaunch");
}

} // namespace

Result<CudaQueueRest> begin_cuda_queue() {
    BERTH_ASSIGN(const CudaApi* api, cuda_api());
    auto begun = std::make_shared<std::unique_ptr<CudaQueue>>(std::make_unique<CudaQueue>(*api));
    BERTH_TRY((*begun)->open());
    return [begun](const CudaQueueOptions& options) -> Result<std::unique_ptr<Queue>> {
        BERTH_TRY((*begun)->use(options));
        return std::move(*begun);
    };
}

Result<std::unique_ptr<Queue>> make_cuda_queue(const CudaQueueOptions& options) {
    BERTH_ASSIGN(const CudaQueueRest rest, begin_cuda_queue());
    return rest(options);
}

} // namespace berth::engine::fast
