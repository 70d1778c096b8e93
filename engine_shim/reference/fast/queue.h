// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/fast/kernel_params.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace berth::engine::fast {

enum class Kernel : uint32_t {
    kEmbed,
    kNorm,
    kLargest,
    kSiluTimes,
    kGather,
    kDequantise,
    kReadAll,
    kRopeStore64,
    kRopeStore128,
    kMerge64,
    kMerge128,
    kAttend64x1,
    kAttend64x2,
    kAttend64x4,
    kAttend128x1,
    kAttend128x2,
    kAttend128x4,
    kAttendAll64x1, // with what lies before and behind it
    kAttendAll64x2,
    kAttendAll64x4,
    kAttendAll128x1,
    kAttendAll128x2,
    kAttendAll128x4,
    kMatrix, // the first of kMatrixKernels: see matrix_kernel()
};
inline constexpr uint32_t kMatrixKernels = 24;
inline constexpr uint32_t kStreamKernels = 24; // behind them: see stream_kernel()
inline constexpr uint32_t kFirstStream = static_cast<uint32_t>(Kernel::kMatrix) + kMatrixKernels;
inline constexpr uint32_t kKernels = kFirstStream + kStreamKernels;
// The entry points of decode_kernels.cu, by number.
extern const std::array<std::string_view, kKernels> kKernelNames;

// Which product kernel: weights in FP8 or bf16, one matrix or a gated pair, 8, 16 or 32 rows of x
// for one group, whose warps lie side by side along the matrix' rows (1 or 2 times) and along k.
struct MatrixShape {
    bool fp8 = false;
    bool pair = false;
    uint32_t columns = 8;
    uint32_t row_warps = 1;
};
Kernel matrix_kernel(const MatrixShape& shape);
inline constexpr uint32_t kMatrixThreads = 256;
// The same product by groups that stay (stream_kernel.cuh), which take few tiles at a time or more:
// that is what MatrixShape::row_warps means here.
Kernel stream_kernel(const MatrixShape& shape);
inline constexpr uint32_t kStreamFewTiles = 2;
inline constexpr uint32_t kStreamManyTiles = 3;

// What launches are cut for.
struct DeviceFacts {
    uint32_t multiprocessors = 1;
    uint32_t shared_bytes = 0; // that one group may have
};

struct Launch {
    Kernel kernel = Kernel::kEmbed;
    std::array<uint32_t, 3> blocks = {1, 1, 1};
    uint32_t threads = 256;
    uint32_t shared_bytes = 0;    // beyond what the kernel itself declares
    const void* params = nullptr; // taken at once
    size_t bytes = 0;
    bool overlap = false; // recorded: it may begin while the kernel before ends
};

// to[m][to_pitch] (+)= x[m][k] . weight[n][k], by the device's library.
struct LibraryProduct {
    const Bf16* weight = nullptr;
    const Bf16* x = nullptr;
    void* to = nullptr; // float, or bf16
    uint32_t n = 0, k = 0, m = 0;
    uint32_t to_pitch = 0;
    bool to_bf16 = false;
    bool adds = false;
};

// Attention of several queries a sequence, causal from each context's end; keys and values of the
// whole context lie in the pages.
struct ChunkAttention {
    const Bf16* q = nullptr; // [queries][heads * head_dim]
    Bf16* to = nullptr;
    Pages pages{};
    // On the device: where each item's queries and contexts begin, and whose tables they use.
    const int32_t* query_starts = nullptr;   // [items + 1]
    const int32_t* context_starts = nullptr; // [items + 1]
    const int32_t* sequences = nullptr;      // [items]
    uint32_t items = 0;
    uint32_t queries = 0, contexts = 0; // in all
    uint32_t queries_max = 0, context_max = 0;
    uint32_t layer = 0, heads = 0, head_dim = 0;
};

// What was recorded once and is started at once. May outlive nothing of what its launches use.
class RecordedGraph {
  public:
    RecordedGraph() = default;
    RecordedGraph(const RecordedGraph&) = delete;
    RecordedGraph& operator=(const RecordedGraph&) = delete;
    virtual ~RecordedGraph() = default;
    // Makes it ready to start; on any thread, and only once. Takes milliseconds.
    virtual Status prepare() = 0;
};

// A graph of sections, before each of which the device itself looks at the gate: while `word` is
// not header->open_word nothing more is done. header->next_section says where to go on.
struct GatedSections {
    uint32_t count = 0;
    const uint32_t* word = nullptr; // host memory that the device sees
    StepHeader* header = nullptr;   // the device's
    std::function<Status(uint32_t section)> record;
};

// Work for the device, done in order. The engine's thread alone, save RecordedGraph::prepare().
class Queue {
  public:
    Queue() = default;
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;
    virtual ~Queue() = default;

    virtual DeviceFacts facts() const = 0;
    virtual Status launch(const Launch& launch) = 0;
    virtual Status multiply(const LibraryProduct& product) = 0;
    virtual Status attend_chunk(const ChunkAttention& attention) = 0;
    // Host memory from host_buffer(): it must stay until wait().
    virtual Status copy_in(void* device, const void* host, size_t bytes) = 0;
    virtual Status copy_out(void* host, const void* device, size_t bytes) = 0;
    virtual Status wait() = 0;
    // For copies at full speed; freed with the queue.
    virtual Result<std::byte*> host_buffer(size_t bytes) = 0;

    // Host memory of somebody else's, as the device sees it; until the queue ends.
    virtual Result<const uint32_t*> share_word(const std::atomic<uint32_t>* word) = 0;

    // Between the two, launches and products are recorded instead of done.
    virtual Status begin_recording() = 0;
    virtual Result<std::unique_ptr<RecordedGraph>> end_recording() = 0;
    virtual Result<std::unique_ptr<RecordedGraph>> record_gated(const GatedSections& sections) = 0;
    virtual Status start(RecordedGraph& graph) = 0;
};

} // namespace berth::engine::fast
