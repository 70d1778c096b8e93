// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/graph_shelf.h"
#include "engine_shim/reference/fast/layers.h"
#include "engine_shim/reference/fast/pace.h"
#include "engine_shim/reference/model/step_model.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace berth::engine::fast {

// How a class that must give way looks at the gate; 0: it never does within a step.
struct LookLimits {
    std::chrono::microseconds decode{0};
    std::chrono::microseconds prefill{0};
    bool any() const { return decode.count() > 0; }
};

// Steps at the speed of the device. Single tokens of several sequences are a graph, recorded for
// their number when it first came up and ready some steps later; prompts are launched kernel by
// kernel, and so are all steps where recording does not work. The device is waited for once a step;
// or, where the class has to look at the gate, once a piece of a few layers, as many as the limit
// allows by measurement, and nothing is queued while the gate is looked at. Engine thread only;
// queue, weights and pages outlive it.
class FastModel {
  public:
    struct Parts {
        Queue& queue;
        Dimensions dims;
        std::vector<float> inverse; // rotary frequencies
        FastWeights weights;
        Pages pages;
        std::byte* workspace = nullptr; // buffers().bytes; contents may be lost between steps
        FastLimits limits;
        FastOptions options;
        LookLimits looks;
        // The gate's word, which changes whenever the gate may close; for looks by the device.
        const std::atomic<uint32_t>* gate_word = nullptr;
        uint32_t contexts_max = 0; // tokens whose keys and values are gathered at once
    };
    static Result<std::unique_ptr<FastModel>> make(Parts parts);

    // Of the items that sample, in order: the likeliest token, and logits on the device.
    struct Outcome {
        std::vector<int32_t> best;
        const float* logits = nullptr; // [best.size()][vocab], until the next step
    };
    // nullopt: the hook said no; the step may be done again.
    Result<std::optional<Outcome>> step(std::span<const StepItem> items, const LayerHook& hook);

    // The canary of model/canary.h, through `block`, which nobody uses; by kernels of its own
    // alone, so that a start need not wait until torch has loaded its. Unavailable: the hook said
    // no.
    Result<std::string> canary(uint32_t block, const LayerHook& hook = {});

    // For benches and tests: graphs for this number of rows, ready on return. A step of as many
    // rows must have been made before: what runs for the first time may not be recorded.
    Status record_now(uint32_t rows);
    // Why graphs are not used, once for each time that recording failed; empty: nothing failed.
    std::string take_warning() { return std::exchange(warning_, {}); }
    const Buffers& buffers() const { return buffers_; }
    const Layers& layers() const { return layers_; }
    uint64_t graph_steps() const { return graph_steps_; }
    uint64_t looks() const { return looks_; }
    uint64_t cut_short() const { return cut_short_; } // graphs that found the gate closed

  private:
    FastModel(Parts parts, const Buffers& buffers, std::byte* host);
    void share_gate_word();
    Result<bool> run_plain(const StepShape& shape, const LayerHook& hook);
    Result<bool> run_recorded(RecordedStep& step, const LayerHook& hook);
    Result<bool> run_gated(RecordedStep& step, const LayerHook& hook);
    Status record_gated(RecordedStep& step, const StepShape& shape);
    Result<Outcome> collect(std::span<const StepItem> items, bool all_rows);
    // 0: the step is no graph's, for it is no single token of each sequence.
    uint32_t graph_rows(std::span<const StepItem> items) const;
    Status record(uint32_t rows);
    Status record_piece(RecordedStep& step, const StepShape& shape, uint32_t first, uint32_t layers,
                        bool head);
    void record_if_wanted(uint32_t rows);
    void note_failed_recording(const Error& why);
    bool is_out_of_pace(const RecordedStep& step);
    bool look(const LayerHook& hook, uint32_t layer);

    Queue& queue_;
    const Dimensions dims_;
    const FastLimits limits_;
    const FastOptions options_;
    const LookLimits look_limits_;
    const uint32_t contexts_max_;
    const std::atomic<uint32_t>* const gate_word_;
    const uint32_t* device_word_ = nullptr; // the same as the device sees it
    const Buffers buffers_;
    const Layers layers_;
    std::byte* const host_; // input, then keys
    StepInput input_;
    Pace pace_;
    GraphShelf shelf_;
    uint32_t failed_recordings_ = 0;
    uint64_t record_after_ = 0; // steps
    std::string warning_;
    uint32_t out_of_pace_ = 0; // steps in a row whose pieces are too long, or much too short
    uint64_t steps_ = 0;
    uint64_t graph_steps_ = 0;
    uint64_t looks_ = 0;
    uint64_t cut_short_ = 0;
};

} // namespace berth::engine::fast
