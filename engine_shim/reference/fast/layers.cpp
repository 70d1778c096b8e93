// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/layers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace berth::engine::fast {

namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarpsEach = kThreads / 32;
constexpr uint32_t kAttendThreads = 128;
constexpr uint32_t kTileRows = 16;
constexpr uint32_t kLargestSlices = 16;
// As measured on an H200. With many rows x is read less often if more tiles share it; with few rows
// what counts is that a product's code is short.
constexpr uint32_t kFewTilesRows = 16;
constexpr uint32_t kStreamInputMax = 512U << 10;

uint32_t ceil_div(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

uint32_t tiles_of(std::span<const Matrix> parts) {
    uint32_t tiles = 0;
    for (const Matrix& part : parts)
        tiles += ceil_div(part.n, kTileRows);
    return tiles;
}

// Rows of x that one group takes.
uint32_t columns_for(uint32_t rows) {
    return rows <= 8 ? 8 : rows <= 16 ? 16 : 32;
}

Kernel attend_kernel(uint32_t head_dim, uint32_t heads, bool all) {
    const Kernel small = all ? Kernel::kAttendAll64x1 : Kernel::kAttend64x1;
    const auto first = static_cast<uint32_t>(small) + (head_dim == 64 ? 0U : 3U);
    return static_cast<Kernel>(first + (heads == 1 ? 0U : heads == 2 ? 1U : 2U));
}

} // namespace

Layers::Layers(const Dimensions& dims, FastWeights weights, const Buffers& buffers, Pages pages,
               const FastOptions& options)
    : dims_(dims), weights_(std::move(weights)), buffers_(buffers), pages_(pages),
      options_(options) {
    pages_.header = buffers_.header;
    pages_.tables = buffers_.tables;
}

Status Layers::begin(Queue& queue, const StepShape& shape) const {
    EmbedParams p{};
    p.tokens = buffers_.tokens;
    p.positions = buffers_.positions;
    p.embedding = weights_.embedding;
    p.inverse = buffers_.inverse;
    p.residual = buffers_.residual;
    p.rope = buffers_.rope;
    p.keys = buffers_.keys;
    p.rope_scale = dims_.rope_scale;
    p.hidden = dims_.hidden;
    p.half = dims_.head_dim / 2;
    p.key_count = shape.logit_rows;
    p.arrived = buffers_.arrived;
    p.arrived_count = arrived_count(dims_, shape.singles);
    return launch(queue, Kernel::kEmbed, {shape.rows, 1, 1}, kThreads, p);
}

Status Layers::norm(Queue& queue, const Bf16* weight, uint32_t rows, const int32_t* rows_at) const {
    const NormParams p{buffers_.residual, rows_at,       weight,
                       buffers_.normed,   dims_.epsilon, dims_.hidden};
    return launch(queue, Kernel::kNorm, {rows, 1, 1}, kThreads, p);
}

bool Layers::by_own_kernel(const Matrix& matrix, uint32_t rows) const {
    return rows <= (matrix.fp8() ? options_.own_rows_fp8 : options_.own_rows);
}

bool Layers::streams(const Queue& queue, std::span<const Matrix> parts, uint32_t rows,
                     MatrixMode mode) const {
    const bool pair = mode == kSiluTimes;
    const DeviceFacts facts = queue.facts();
    if (rows > (pair ? options_.stream_rows_pair : options_.stream_rows) ||
        facts.shared_bytes < stream_shared_bytes(32, true))
        return false;
    if (pair || parts[0].fp8())
        return true;
    const uint32_t passes =
        ceil_div(ceil_div(tiles_of(parts), facts.multiprocessors), kStreamManyTiles);
    const uint32_t most =
        options_.stream_input_max == 0 ? kStreamInputMax : options_.stream_input_max;
    return uint64_t{passes} * rows * parts[0].k * sizeof(Bf16) <= most;
}

Status Layers::product(Queue& queue, std::span<const Matrix> parts, const Bf16* x, void* to,
                       uint32_t rows, MatrixMode mode) const {
    return streams(queue, parts, rows, mode) || by_own_kernel(parts[0], rows)
               ? own_product(queue, parts, x, to, rows, mode)
               : library_product(queue, parts, x, to, rows, mode);
}

Status Layers::streamed_product(Queue& queue, const MatrixParams& p, bool fp8,
                                uint32_t tiles) const {
    const bool pair = p.mode == kSiluTimes;
    const uint32_t columns = columns_for(p.m);
    const uint32_t groups = std::min(queue.facts().multiprocessors, tiles);
    const bool many = options_.many_tiles && p.m > kFewTilesRows &&
                      (pair || ceil_div(tiles, groups) > kStreamFewTiles);
    return queue.launch({stream_kernel({fp8, pair, columns, many ? 2U : 1U}),
                         {groups, ceil_div(p.m, columns), 1},
                         kStreamThreads,
                         stream_shared_bytes(columns, pair),
                         &p,
                         sizeof p,
                         options_.overlap});
}

Status Layers::own_product(Queue& queue, std::span<const Matrix> parts, const Bf16* x, void* to,
                           uint32_t rows, MatrixMode mode) const {
    MatrixParams p{};
    const bool pair = mode == kSiluTimes;
    uint32_t tiles = 0;
    for (size_t part = 0; part < parts.size(); ++part) {
        p.weight[part] = parts[part].data;
        p.scales[part] = parts[part].scales;
        p.n[part] = parts[part].n;
        if (!pair || part == 0) {
            tiles += ceil_div(parts[part].n, kTileRows);
            p.to_pitch += parts[part].n;
        }
    }
    p.parts = static_cast<uint32_t>(parts.size());
    p.x = x;
    p.to = to;
    p.m = rows;
    p.k = parts[0].k;
    p.mode = mode;
    if (streams(queue, parts, rows, mode))
        return streamed_product(queue, p, parts[0].fp8(), tiles);
    const uint32_t columns = columns_for(rows);
    const Kernel kernel = matrix_kernel({parts[0].fp8(), pair, columns, options_.row_warps});
    return launch(queue, kernel, {ceil_div(tiles, options_.row_warps), ceil_div(rows, columns), 1},
                  kMatrixThreads, p);
}

Status Layers::library_product(Queue& queue, std::span<const Matrix> parts, const Bf16* x, void* to,
                               uint32_t rows, MatrixMode mode) const {
    const bool pair = mode == kSiluTimes;
    uint32_t width = 0;
    for (const Matrix& part : parts)
        width += part.n;
    uint32_t before = 0;
    for (const Matrix& part : parts) {
        LibraryProduct product;
        product.weight = static_cast<const Bf16*>(part.data);
        if (part.fp8()) {
            const DequantiseParams p{static_cast<const uint8_t*>(part.data), part.scales,
                                     buffers_.dequantised, part.n, part.k};
            const uint64_t quads = uint64_t{part.n} * part.k / 4;
            BERTH_TRY(launch(queue, Kernel::kDequantise,
                             {static_cast<uint32_t>((quads + kThreads - 1) / kThreads), 1, 1},
                             kThreads, p));
            product.weight = buffers_.dequantised;
        }
        product.x = x;
        product.to = pair ? static_cast<void*>(buffers_.gate_up + before)
                          : static_cast<void*>(static_cast<float*>(to) + before);
        product.n = part.n;
        product.k = part.k;
        product.m = rows;
        product.to_pitch = width;
        product.to_bf16 = pair;
        product.adds = mode == kAdd;
        BERTH_TRY(queue.multiply(product));
        before += part.n;
    }
    if (!pair)
        return {};
    const SiluParams p{buffers_.gate_up, static_cast<Bf16*>(to), parts[0].n};
    return launch(queue, Kernel::kSiluTimes, {ceil_div(parts[0].n, 2 * kThreads), rows, 1},
                  kThreads, p);
}

HeadParams Layers::heads_of(uint32_t layer) const {
    const FastLayer& w = weights_.layers[layer];
    HeadParams p{};
    p.qkv = buffers_.qkv;
    p.rope = buffers_.rope;
    for (size_t kind = 0; kind < 3; ++kind)
        p.bias[kind] = w.bias[kind];
    p.q_norm = w.q_norm;
    p.k_norm = w.k_norm;
    p.epsilon = dims_.epsilon;
    p.heads = dims_.heads;
    p.kv_heads = dims_.kv_heads;
    return p;
}

// Of those that attend() does not do itself.
Status Layers::rotate(Queue& queue, const StepShape& shape, uint32_t layer) const {
    RopeParams p{};
    p.first_row = options_.attend_all ? shape.singles : 0;
    if (p.first_row == shape.rows)
        return {};
    p.from = heads_of(layer);
    p.positions = buffers_.positions;
    p.sequences = buffers_.sequences;
    p.q = buffers_.q;
    p.pages = pages_;
    p.layer = layer;
    return launch(
        queue, dims_.head_dim == 64 ? Kernel::kRopeStore64 : Kernel::kRopeStore128,
        {shape.rows - p.first_row, ceil_div(dims_.heads + 2 * dims_.kv_heads, kWarpsEach), 1},
        kThreads, p);
}

Status Layers::attend(Queue& queue, uint32_t rows, uint32_t layer) const {
    AttendParams p{};
    p.q = buffers_.q;
    p.positions = buffers_.positions;
    p.pages = pages_;
    p.partial = buffers_.partial;
    p.to = buffers_.mixed;
    p.scale = std::numbers::log2e_v<float> / std::sqrt(static_cast<float>(dims_.head_dim));
    p.layer = layer;
    p.heads = dims_.heads;
    p.splits = attend_splits(dims_, rows, options_.attend_groups);
    if (options_.attend_all)
        p.heads_from = heads_of(layer);
    p.arrived = buffers_.arrived;
    BERTH_TRY(launch(queue, attend_kernel(dims_.head_dim, attend_heads(dims_), options_.attend_all),
                     {dims_.kv_heads * attend_groups_each(dims_), p.splits, rows}, kAttendThreads,
                     p));
    if (p.splits == 1 || options_.attend_all)
        return {};
    return launch(queue, dims_.head_dim == 64 ? Kernel::kMerge64 : Kernel::kMerge128,
                  {dims_.heads, rows, 1}, dims_.head_dim, p);
}

Status Layers::attend_chunks(Queue& queue, const StepShape& shape, uint32_t layer) const {
    for (const ChunkGroup& group : shape.chunks) {
        ChunkAttention chunk;
        chunk.q = buffers_.q + uint64_t{group.first_row} * dims_.query_width();
        chunk.to = buffers_.mixed + uint64_t{group.first_row} * dims_.query_width();
        chunk.pages = pages_;
        chunk.query_starts = buffers_.chunks + group.starts_at;
        chunk.context_starts = chunk.query_starts + group.items + 1;
        chunk.sequences = chunk.context_starts + group.items + 1;
        chunk.items = group.items;
        chunk.queries = group.queries;
        chunk.contexts = group.contexts;
        chunk.queries_max = group.queries_max;
        chunk.context_max = group.context_max;
        chunk.layer = layer;
        chunk.heads = dims_.heads;
        chunk.head_dim = dims_.head_dim;
        BERTH_TRY(queue.attend_chunk(chunk));
    }
    return {};
}

Status Layers::layer(Queue& queue, const StepShape& shape, uint32_t index) const {
    const FastLayer& w = weights_.layers[index];
    BERTH_TRY(norm(queue, w.input_norm, shape.rows, nullptr));
    BERTH_TRY(product(queue, w.qkv, buffers_.normed, buffers_.qkv, shape.rows, kStore));
    BERTH_TRY(rotate(queue, shape, index));
    if (shape.singles > 0)
        BERTH_TRY(attend(queue, shape.singles, index));
    BERTH_TRY(attend_chunks(queue, shape, index));
    BERTH_TRY(
        product(queue, std::span(&w.o, 1), buffers_.mixed, buffers_.residual, shape.rows, kAdd));
    BERTH_TRY(norm(queue, w.post_norm, shape.rows, nullptr));
    BERTH_TRY(product(queue, w.gate_up, buffers_.normed, buffers_.active, shape.rows, kSiluTimes));
    return product(queue, std::span(&w.down, 1), buffers_.active, buffers_.residual, shape.rows,
                   kAdd);
}

Status Layers::end(Queue& queue, const StepShape& shape) const {
    if (shape.logit_rows == 0)
        return {};
    BERTH_TRY(norm(queue, weights_.final_norm, shape.logit_rows, buffers_.logit_rows));
    BERTH_TRY(product(queue, std::span(&weights_.head, 1), buffers_.normed, buffers_.logits,
                      shape.logit_rows, kStore));
    const LargestParams p{buffers_.logits, buffers_.keys, dims_.vocab, kLargestSlices};
    return launch(queue, Kernel::kLargest, {kLargestSlices, shape.logit_rows, 1}, kThreads, p);
}

} // namespace berth::engine::fast
