// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/emulated_queue.h"

#include "tests/engine/kernel_emulator.h"

#include "engine_shim/reference/fast/attend_all.cuh"
#include "engine_shim/reference/fast/matrix_kernel.cuh"
#include "engine_shim/reference/fast/small_kernels.cuh"
#include "engine_shim/reference/fast/stream_kernel.cuh"

#include <cmath>
#include <cstring>

namespace berth::test {

namespace fast = engine::fast;

using namespace fast;

namespace {

template <typename Params>
const Params& params_of(const Launch& launch) {
    return *static_cast<const Params*>(launch.params);
}

template <typename Kernel, typename Params>
void run_shared(const Launch& launch) {
    const auto shared = std::make_unique<typename Kernel::Shared>();
    emulate({launch.blocks[0], launch.blocks[1], launch.blocks[2]}, launch.threads,
            [&] { Kernel::run(params_of<Params>(launch), *shared); });
}

void run(const Launch& launch, const std::function<void()>& kernel) {
    emulate({launch.blocks[0], launch.blocks[1], launch.blocks[2]}, launch.threads, kernel);
}

template <typename Weight, int kMatrices>
void run_matrix(const Launch& launch, uint32_t variant) {
    switch (variant) {
    case 0:
        return run_shared<MatrixKernel<Weight, 1, kMatrices, 1, 8>, MatrixParams>(launch);
    case 1:
        return run_shared<MatrixKernel<Weight, 1, kMatrices, 2, 4>, MatrixParams>(launch);
    case 2:
        return run_shared<MatrixKernel<Weight, 2, kMatrices, 1, 8>, MatrixParams>(launch);
    case 3:
        return run_shared<MatrixKernel<Weight, 2, kMatrices, 2, 4>, MatrixParams>(launch);
    case 4:
        return run_shared<MatrixKernel<Weight, 4, kMatrices, 1, 8>, MatrixParams>(launch);
    default:
        return run_shared<MatrixKernel<Weight, 4, kMatrices, 2, 4>, MatrixParams>(launch);
    }
}

void run_matrix(const Launch& launch) {
    const uint32_t index =
        static_cast<uint32_t>(launch.kernel) - static_cast<uint32_t>(Kernel::kMatrix);
    switch (index / 6) {
    case 0:
        return run_matrix<Bf16Weight, 1>(launch, index % 6);
    case 1:
        return run_matrix<Bf16Weight, 2>(launch, index % 6);
    case 2:
        return run_matrix<Fp8Weight, 1>(launch, index % 6);
    default:
        return run_matrix<Fp8Weight, 2>(launch, index % 6);
    }
}

template <typename Weight, int kMatrices>
void run_stream(const Launch& launch, uint32_t variant) {
    constexpr int kFew = kMatrices == 1 ? 2 : 1;
    constexpr int kMany = Weight::kScaled ? kFew : kMatrices == 1 ? 3 : 2;
    switch (variant) {
    case 0:
        return run_shared<StreamKernel<Weight, 1, kMatrices, kFew>, MatrixParams>(launch);
    case 1:
        return run_shared<StreamKernel<Weight, 1, kMatrices, kMany>, MatrixParams>(launch);
    case 2:
        return run_shared<StreamKernel<Weight, 2, kMatrices, kFew>, MatrixParams>(launch);
    case 3:
        return run_shared<StreamKernel<Weight, 2, kMatrices, kMany>, MatrixParams>(launch);
    case 4:
        return run_shared<StreamKernel<Weight, 4, kMatrices, kFew>, MatrixParams>(launch);
    default:
        return run_shared<StreamKernel<Weight, 4, kMatrices, kMany>, MatrixParams>(launch);
    }
}

void run_stream(const Launch& launch) {
    const uint32_t index = static_cast<uint32_t>(launch.kernel) - kFirstStream;
    switch (index / 6) {
    case 0:
        return run_stream<Bf16Weight, 1>(launch, index % 6);
    case 1:
        return run_stream<Bf16Weight, 2>(launch, index % 6);
    case 2:
        return run_stream<Fp8Weight, 1>(launch, index % 6);
    default:
        return run_stream<Fp8Weight, 2>(launch, index % 6);
    }
}

void run_attention(const Launch& launch) {
    static MergeShared merge;
    switch (launch.kernel) {
    case Kernel::kAttend64x1:
        return run_shared<AttendKernel<64, 1>, AttendParams>(launch);
    case Kernel::kAttend64x2:
        return run_shared<AttendKernel<64, 2>, AttendParams>(launch);
    case Kernel::kAttend64x4:
        return run_shared<AttendKernel<64, 4>, AttendParams>(launch);
    case Kernel::kAttend128x1:
        return run_shared<AttendKernel<128, 1>, AttendParams>(launch);
    case Kernel::kAttend128x2:
        return run_shared<AttendKernel<128, 2>, AttendParams>(launch);
    case Kernel::kAttend128x4:
        return run_shared<AttendKernel<128, 4>, AttendParams>(launch);
    case Kernel::kAttendAll64x1:
        return run_shared<AttendAll<64, 1>, AttendParams>(launch);
    case Kernel::kAttendAll64x2:
        return run_shared<AttendAll<64, 2>, AttendParams>(launch);
    case Kernel::kAttendAll64x4:
        return run_shared<AttendAll<64, 4>, AttendParams>(launch);
    case Kernel::kAttendAll128x1:
        return run_shared<AttendAll<128, 1>, AttendParams>(launch);
    case Kernel::kAttendAll128x2:
        return run_shared<AttendAll<128, 2>, AttendParams>(launch);
    case Kernel::kAttendAll128x4:
        return run_shared<AttendAll<128, 4>, AttendParams>(launch);
    case Kernel::kMerge64:
        return run(launch, [&] { attend_merge<64>(params_of<AttendParams>(launch), merge); });
    default:
        return run(launch, [&] { attend_merge<128>(params_of<AttendParams>(launch), merge); });
    }
}

void run_any(const Launch& launch) {
    static float floats[kSmallWarps];
    static uint64_t keys[kSmallWarps];
    switch (launch.kernel) {
    case Kernel::kEmbed:
        return run(launch, [&] { embed(params_of<EmbedParams>(launch)); });
    case Kernel::kNorm:
        return run(launch, [&] { norm(params_of<NormParams>(launch), floats); });
    case Kernel::kLargest:
        return run(launch, [&] { largest(params_of<LargestParams>(launch), keys); });
    case Kernel::kSiluTimes:
        return run(launch, [&] { silu_times(params_of<SiluParams>(launch)); });
    case Kernel::kGather:
        return run(launch, [&] { gather(params_of<GatherParams>(launch)); });
    case Kernel::kDequantise:
        return run(launch, [&] { dequantise(params_of<DequantiseParams>(launch)); });
    case Kernel::kReadAll:
        return run(launch, [&] { read_all(params_of<ReadParams>(launch)); });
    case Kernel::kRopeStore64:
        return run(launch, [&] { rope_store<64>(params_of<RopeParams>(launch)); });
    case Kernel::kRopeStore128:
        return run(launch, [&] { rope_store<128>(params_of<RopeParams>(launch)); });
    default:
        if (static_cast<uint32_t>(launch.kernel) >= kFirstStream)
            return run_stream(launch);
        return launch.kernel >= Kernel::kMatrix ? run_matrix(launch) : run_attention(launch);
    }
}

} // namespace

class EmulatedQueue::Graph final : public RecordedGraph {
  public:
    Status prepare() override {
        prepared = true;
        return {};
    }
    std::vector<std::vector<Recorded>> sections;
    const uint32_t* word = nullptr; // null: it does not look
    StepHeader* header = nullptr;
    bool prepared = false;
};

Status EmulatedQueue::launch(const Launch& launch) {
    if (recording_) {
        const auto* bytes = static_cast<const std::byte*>(launch.params);
        recorded_.push_back({launch, {bytes, bytes + launch.bytes}});
        return {};
    }
    ++launches;
    if (launch.kernel == Kernel::kNorm)
        ++queued_layers;
    run_any(launch);
    return {};
}

Status EmulatedQueue::multiply(const LibraryProduct& p) {
    if (recording_)
        return fail(ErrorCode::kUnsupported, "products by loops are not recorded here");
    ++products;
    for (uint32_t m = 0; m < p.m; ++m)
        for (uint32_t n = 0; n < p.n; ++n) {
            float sum = 0;
            for (uint32_t k = 0; k < p.k; ++k)
                sum += widen_bf16(p.x[uint64_t{m} * p.k + k]) *
                       widen_bf16(p.weight[uint64_t{n} * p.k + k]);
            const uint64_t at = uint64_t{m} * p.to_pitch + n;
            if (p.to_bf16)
                static_cast<Bf16*>(p.to)[at] = round_to_bf16(sum);
            else
                static_cast<float*>(p.to)[at] =
                    sum + (p.adds ? static_cast<float*>(p.to)[at] : 0.0F);
        }
    return {};
}

// One query of one head over its context.
static void attend_one(const ChunkAttention& c, uint32_t query, uint32_t head, uint32_t sequence,
                       uint32_t context) {
    const uint32_t dim = c.head_dim;
    const uint32_t kv_head = head / (c.heads / c.pages.kv_heads);
    const Bf16* q = c.q + (uint64_t{query} * c.heads + head) * dim;
    std::vector<double> sums(dim);
    double weight = 0;
    for (uint32_t token = 0; token < context; ++token) {
        const Bf16* keys =
            page_of(c.pages, c.pages.header->table_pitch, sequence, token, 2 * c.layer) +
            (uint64_t{token % c.pages.block_tokens} * c.pages.kv_heads + kv_head) * dim;
        double score = 0;
        for (uint32_t i = 0; i < dim; ++i)
            score += double{widen_bf16(q[i])} * double{widen_bf16(keys[i])};
        const double share = std::exp(score / std::sqrt(static_cast<double>(dim)));
        weight += share;
        for (uint32_t i = 0; i < dim; ++i)
            sums[i] += share * double{widen_bf16(keys[c.pages.plane_stride + i])};
    }
    for (uint32_t i = 0; i < dim; ++i)
        c.to[(uint64_t{query} * c.heads + head) * dim + i] =
            round_to_bf16(static_cast<float>(sums[i] / weight));
}

Status EmulatedQueue::attend_chunk(const ChunkAttention& c) {
    for (uint32_t item = 0; item < c.items; ++item) {
        const int32_t begin = c.query_starts[item];
        const int32_t end = c.query_starts[item + 1];
        const int32_t context = c.context_starts[item + 1] - c.context_starts[item];
        for (int32_t query = begin; query < end; ++query)
            for (uint32_t head = 0; head < c.heads; ++head)
                attend_one(c, static_cast<uint32_t>(query), head,
                           static_cast<uint32_t>(c.sequences[item]),
                           static_cast<uint32_t>(context - (end - 1 - query)));
    }
    return {};
}

Status EmulatedQueue::copy_in(void* device, const void* host, size_t bytes) {
    std::memcpy(device, host, bytes);
    return {};
}
Status EmulatedQueue::copy_out(void* host, const void* device, size_t bytes) {
    std::memcpy(host, device, bytes);
    return {};
}
Status EmulatedQueue::wait() {
    ++waits;
    queued_layers = 0;
    return {};
}
Result<std::byte*> EmulatedQueue::host_buffer(size_t bytes) {
    host_.push_back(std::make_unique<std::byte[]>(bytes));
    return host_.back().get();
}

Status EmulatedQueue::begin_recording() {
    if (refuses_recording)
        return fail(ErrorCode::kUnsupported, "no graphs on this device");
    recording_ = true;
    return {};
}
Result<std::unique_ptr<RecordedGraph>> EmulatedQueue::end_recording() {
    recording_ = false;
    auto graph = std::make_unique<Graph>();
    graph->sections.push_back(std::exchange(recorded_, {}));
    return graph;
}
Result<std::unique_ptr<RecordedGraph>> EmulatedQueue::record_gated(const GatedSections& sections) {
    auto graph = std::make_unique<Graph>();
    graph->word = sections.word;
    graph->header = sections.header;
    for (uint32_t section = 0; section < sections.count; ++section) {
        BERTH_TRY(begin_recording());
        const Status recorded = sections.record(section);
        recording_ = false;
        graph->sections.push_back(std::exchange(recorded_, {}));
        BERTH_TRY(recorded);
    }
    return graph;
}
Result<const uint32_t*> EmulatedQueue::share_word(const std::atomic<uint32_t>* word) {
    return reinterpret_cast<const uint32_t*>(word);
}
Status EmulatedQueue::start(RecordedGraph& graph) {
    auto& mine = dynamic_cast<Graph&>(graph);
    if (!mine.prepared)
        return fail(ErrorCode::kInternal, "a graph was started that is not ready");
    ++graphs_started;
    for (uint32_t section = 0; section < mine.sections.size(); ++section) {
        if (mine.word != nullptr) {
            if (before_look)
                before_look(section);
            if (section != mine.header->next_section || *mine.word != mine.header->open_word)
                continue;
            mine.header->next_section = section + 1;
        }
        for (Recorded& one : mine.sections[section]) {
            one.launch.params = one.params.data();
            BERTH_TRY(launch(one.launch));
        }
    }
    return {};
}

} // namespace berth::test
