// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/buffers.h"
#include "engine_shim/reference/fast/queue.h"
#include "engine_shim/reference/fast/step_input.h"

#include <span>

namespace berth::engine::fast {

// The model's mathematics as launches: what is started, or recorded, is the same. Residuals, scores
// and sums are float32; what products take is bf16. Keeps nothing between calls.
class Layers {
  public:
    Layers(const Dimensions& dims, FastWeights weights, const Buffers& buffers, Pages pages,
           const FastOptions& options);

    Status begin(Queue& queue, const StepShape& shape) const;
    Status layer(Queue& queue, const StepShape& shape, uint32_t index) const;
    Status end(Queue& queue, const StepShape& shape) const; // logits and the largest of each
    uint32_t count() const { return dims_.layers; }

    // Public for benches: products and single-query attention alone.
    Status product(Queue& queue, std::span<const Matrix> parts, const Bf16* x, void* to,
                   uint32_t rows, MatrixMode mode) const;
    Status attend(Queue& queue, uint32_t rows, uint32_t layer) const;

  private:
    template <typename Params>
    Status launch(Queue& queue, Kernel kernel, std::array<uint32_t, 3> blocks, uint32_t threads,
                  const Params& params) const {
        return queue.launch({kernel, blocks, threads, 0, &params, sizeof params, options_.overlap});
    }
    bool by_own_kernel(const Matrix& matrix, uint32_t rows) const;
    bool streams(const Queue& queue, std::span<const Matrix> parts, uint32_t rows,
                 MatrixMode mode) const;
    Status streamed_product(Queue& queue, const MatrixParams& p, bool fp8, uint32_t tiles) const;
    Status own_product(Queue& queue, std::span<const Matrix> parts, const Bf16* x, void* to,
                       uint32_t rows, MatrixMode mode) const;
    Status library_product(Queue& queue, std::span<const Matrix> parts, const Bf16* x, void* to,
                           uint32_t rows, MatrixMode mode) const;
    HeadParams heads_of(uint32_t layer) const;
    Status rotate(Queue& queue, const StepShape& shape, uint32_t layer) const;
    Status attend_chunks(Queue& queue, const StepShape& shape, uint32_t layer) const;
    Status norm(Queue& queue, const Bf16* weight, uint32_t rows, const int32_t* rows_at) const;

    const Dimensions dims_;
    const FastWeights weights_;
    const Buffers buffers_;
    Pages pages_;
    const FastOptions options_;
};

} // namespace berth::engine::fast
