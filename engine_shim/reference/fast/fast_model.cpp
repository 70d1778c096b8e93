// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/fast_model.h"

#include "base/round.h"
#include "engine_shim/reference/model/canary.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace berth::engine::fast {

namespace {

using Clock = std::chrono::steady_clock;

// Nothing is recorded until somebody has been answered.
constexpr uint64_t kStepsBeforeRecording = 2;
// A recording that fails is tried once more so many steps later.
constexpr uint64_t kStepsAfterFailure = 1000;
constexpr uint32_t kRecordingFailuresMax = 2;
// Steps after which pieces that do not fit the limit are recorded anew.
constexpr uint32_t kOutOfPaceSteps = 32;

size_t keys_at(const Buffers& buffers) {
    return round_up(buffers.input_words * sizeof(int32_t), size_t{64});
}

bool are_singles(std::span<const StepItem> items) {
    return std::all_of(items.begin(), items.end(),
                       [](const StepItem& item) { return item.tokens.size() == 1; });
}

} // namespace

Result<std::unique_ptr<FastModel>> FastModel::make(Parts parts) {
    if (parts.pages.block_tokens % kPageTokens != 0)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("KV blocks of {} tokens: the kernels take multiples of {}",
                                parts.pages.block_tokens, kPageTokens),
                    "NoFastPath");
    const Buffers buffers = lay_out(parts.dims, parts.limits, parts.options, parts.workspace);
    BERTH_ASSIGN(
        std::byte * host,
        parts.queue.host_buffer(keys_at(buffers) + parts.limits.sequences * sizeof(uint64_t)));
    const bool device_looks = parts.options.device_looks && parts.looks.any();
    std::unique_ptr<FastModel> made(new FastModel(std::move(parts), buffers, host));
    if (device_looks)
        made->share_gate_word();
    return made;
}

// Without it the host looks between pieces.
void FastModel::share_gate_word() {
    if (gate_word_ == nullptr)
        return;
    const auto shared = queue_.share_word(gate_word_);
    if (shared)
        device_word_ = *shared;
    else
        warning_ = fmt::format("the device cannot look at the gate by itself, the host looks "
                               "between pieces of a step: {}",
                               shared.error().message);
}

FastModel::FastModel(Parts parts, const Buffers& buffers, std::byte* host)
    : queue_(parts.queue), dims_(parts.dims), limits_(parts.limits), options_(parts.options),
      look_limits_(parts.looks), contexts_max_(parts.contexts_max), gate_word_(parts.gate_word),
      buffers_(buffers),
      layers_(parts.dims, std::move(parts.weights), buffers, parts.pages, parts.options),
      host_(host), input_(buffers, parts.limits, std::move(parts.inverse), host) {}

bool FastModel::look(const LayerHook& hook, uint32_t layer) {
    ++looks_;
    return !hook || hook(layer);
}

Result<bool> FastModel::run_plain(const StepShape& shape, const LayerHook& hook) {
    const bool looks = look_limits_.any();
    const auto limit = shape.chunks.empty() ? look_limits_.decode : look_limits_.prefill;
    const uint32_t each =
        looks ? pace_.layers_within(shape.rows, limit, layers_.count()) : layers_.count();
    for (uint32_t first = 0; first < layers_.count(); first += each) {
        if (!look(hook, first))
            return false;
        const auto begun = Clock::now();
        if (first == 0) {
            BERTH_TRY(queue_.copy_in(buffers_.header, host_, input_.used_bytes()));
            BERTH_TRY(layers_.begin(queue_, shape));
        }
        const uint32_t end = std::min(first + each, layers_.count());
        for (uint32_t layer = first; layer < end; ++layer)
            BERTH_TRY(layers_.layer(queue_, shape, layer));
        if (!looks)
            continue;
        BERTH_TRY(queue_.wait());
        pace_.note(shape.rows, end - first, Clock::now() - begun);
    }
    if (looks && !look(hook, layers_.count()))
        return false;
    BERTH_TRY(layers_.end(queue_, shape));
    return true;
}

Result<bool> FastModel::run_recorded(RecordedStep& step, const LayerHook& hook) {
    const bool looks = look_limits_.any();
    for (const RecordedStep::Piece& piece : step.pieces) {
        if (!look(hook, piece.first_layer))
            return false;
        const auto begun = Clock::now();
        if (piece.first_layer == 0)
            BERTH_TRY(queue_.copy_in(buffers_.header, host_, input_.used_bytes()));
        BERTH_TRY(queue_.start(*piece.graph));
        if (!looks || piece.layers == 0)
            continue; // what is left is waited for with the step's result
        BERTH_TRY(queue_.wait());
        pace_.note(step.rows, piece.layers, Clock::now() - begun);
    }
    ++graph_steps_;
    return true;
}

// The word is read before the gate is looked at, so that the device sees what changes in between.
Result<bool> FastModel::run_gated(RecordedStep& step, const LayerHook& hook) {
    for (uint32_t section = 0; section < step.sections;) {
        uint32_t word = 0;
        do {
            word = gate_word_->load();
            if (!look(hook, section * step.layers_each))
                return false;
        } while (word != gate_word_->load());
        const uint32_t begun_at = section;
        input_.set_look(word, section);
        BERTH_TRY(queue_.copy_in(buffers_.header, host_,
                                 section == 0 ? input_.used_bytes() : sizeof(StepHeader)));
        const auto begun = Clock::now();
        BERTH_TRY(queue_.start(*step.pieces.front().graph));
        BERTH_TRY(queue_.copy_out(host_, buffers_.header, sizeof(StepHeader)));
        BERTH_TRY(queue_.wait());
        section = input_.header().next_section;
        if (section < step.sections)
            ++cut_short_;
        else if (begun_at == 0)
            pace_.note(step.rows, layers_.count() + 1, Clock::now() - begun);
    }
    ++graph_steps_;
    return true;
}

Result<FastModel::Outcome> FastModel::collect(std::span<const StepItem> items, bool all_rows) {
    Outcome outcome;
    outcome.logits = buffers_.logits;
    uint32_t rows = 0;
    for (const StepItem& item : items)
        rows += all_rows || item.samples ? 1 : 0;
    auto* keys = reinterpret_cast<uint64_t*>(host_ + keys_at(buffers_));
    if (rows > 0)
        BERTH_TRY(queue_.copy_out(keys, buffers_.keys, rows * sizeof(uint64_t)));
    BERTH_TRY(queue_.wait());
    for (uint32_t row = 0; row < rows; ++row) {
        const uint32_t token = 0xffffffffU - static_cast<uint32_t>(keys[row]);
        if (token >= dims_.vocab)
            return fail(ErrorCode::kInternal,
                        fmt::format("row {} of the step has no largest logit: what the device "
                                    "computed is not a number",
                                    row),
                        "StepFailed");
        outcome.best.push_back(static_cast<int32_t>(token));
    }
    return outcome;
}

uint32_t FastModel::graph_rows(std::span<const StepItem> items) const {
    if (!options_.graphs || !are_singles(items))
        return 0;
    for (const StepItem& item : items)
        if (!item.samples) // rows and results would not be one to one
            return 0;
    return GraphShelf::rows_for(static_cast<uint32_t>(items.size()), limits_.sequences);
}

Result<std::optional<FastModel::Outcome>> FastModel::step(std::span<const StepItem> items,
                                                          const LayerHook& hook) {
    const uint32_t rows = graph_rows(items);
    RecordedStep* const recorded = rows > 0 ? shelf_.find(rows) : nullptr;
    // Launched one by one a step has its graph's shape too: the results are the same, and each
    // launch has been made, with what it loads and allocates, before it is recorded.
    const StepShape shape =
        rows > 0 ? input_.write_singles(items, rows) : input_.write(items, contexts_max_);
    bool finished = false;
    if (recorded != nullptr && recorded->ready.load(std::memory_order_acquire)) {
        BERTH_ASSIGN(finished, recorded->sections > 0 ? run_gated(*recorded, hook)
                                                      : run_recorded(*recorded, hook));
    } else {
        BERTH_ASSIGN(finished, run_plain(shape, hook));
    }
    if (!finished) {
        BERTH_TRY(queue_.wait());
        return std::nullopt;
    }
    BERTH_ASSIGN(Outcome outcome, collect(items, false));
    ++steps_;
    if (rows > 0)
        record_if_wanted(rows);
    return outcome;
}

Result<std::string> FastModel::canary(uint32_t block, const LayerHook& hook) {
    const int32_t token = canary_token(dims_.vocab);
    const StepItem item{std::span(&token, 1), 0, std::span(&block, 1), 1, true, true, 0, {}};
    BERTH_ASSIGN(const auto outcome, step(std::span(&item, 1), hook));
    if (!outcome)
        return fail(ErrorCode::kUnavailable, "the canary step was given up");
    std::vector<float> logits(dims_.vocab);
    BERTH_TRY(queue_.copy_out(logits.data(), outcome->logits, dims_.vocab * sizeof(float)));
    BERTH_TRY(queue_.wait());
    return canary_digest(logits);
}

Status FastModel::record_piece(RecordedStep& step, const StepShape& shape, uint32_t first,
                               uint32_t layers, bool head) {
    BERTH_TRY(queue_.begin_recording());
    Status recorded = first == 0 ? layers_.begin(queue_, shape) : Status();
    for (uint32_t layer = first; layer < first + layers; ++layer)
        if (recorded)
            recorded = layers_.layer(queue_, shape, layer);
    if (recorded && head)
        recorded = layers_.end(queue_, shape);
    auto graph = queue_.end_recording(); // also after a failure, so that recording ends
    BERTH_TRY(recorded);
    if (!graph)
        return fail(graph.error());
    step.pieces.push_back({first, layers, std::move(*graph)});
    return {};
}

// The head is a section of its own.
Status FastModel::record_gated(RecordedStep& step, const StepShape& shape) {
    const uint32_t count = layers_.count();
    const uint32_t each = step.layers_each;
    step.sections = (count + each - 1) / each + 1;
    const auto record = [&](uint32_t section) -> Status {
        if (section + 1 == step.sections)
            return layers_.end(queue_, shape);
        if (section == 0)
            BERTH_TRY(layers_.begin(queue_, shape));
        const uint32_t end = std::min((section + 1) * each, count);
        for (uint32_t layer = section * each; layer < end; ++layer)
            BERTH_TRY(layers_.layer(queue_, shape, layer));
        return {};
    };
    BERTH_ASSIGN(auto graph,
                 queue_.record_gated({step.sections, device_word_, buffers_.header, record}));
    step.pieces.push_back({0, count, std::move(graph)});
    return {};
}

Status FastModel::record(uint32_t rows) {
    auto step = std::make_unique<RecordedStep>();
    const uint32_t count = layers_.count();
    const bool looks = look_limits_.any();
    step->rows = rows;
    step->layers_each = looks ? pace_.layers_within(rows, look_limits_.decode, count) : count;
    const StepShape shape{rows, rows, rows, {}};
    if (looks && device_word_ != nullptr) {
        BERTH_TRY(record_gated(*step, shape));
        shelf_.keep(std::move(step));
        return {};
    }
    for (uint32_t first = 0; first < count; first += step->layers_each)
        BERTH_TRY(
            record_piece(*step, shape, first, std::min(step->layers_each, count - first), !looks));
    if (looks)
        BERTH_TRY(record_piece(*step, shape, count, 0, true));
    shelf_.keep(std::move(step));
    return {};
}

Status FastModel::record_now(uint32_t rows) {
    BERTH_TRY(record(rows));
    shelf_.settle();
    return shelf_.take_error();
}

bool FastModel::is_out_of_pace(const RecordedStep& step) {
    const uint32_t fits = pace_.layers_within(step.rows, look_limits_.decode, layers_.count());
    const uint32_t has = step.layers_each;
    if (!look_limits_.any() || !step.ready || (fits * 6 >= has * 5 && fits * 2 <= has * 3))
        out_of_pace_ = 0;
    else
        ++out_of_pace_;
    return out_of_pace_ >= kOutOfPaceSteps;
}

// After a step of this shape, so that nothing is under way and nothing is done for the first time.
// Without a recording there are launches one by one.
void FastModel::record_if_wanted(uint32_t rows) {
    if (const Status prepared = shelf_.take_error(); !prepared)
        note_failed_recording(prepared.error());
    if (failed_recordings_ >= kRecordingFailuresMax ||
        steps_ < std::max(record_after_, kStepsBeforeRecording))
        return;
    const RecordedStep* known = shelf_.find(rows);
    if (known != nullptr && !known->failed && !is_out_of_pace(*known))
        return;
    out_of_pace_ = 0;
    if (const Status recorded = record(rows); !recorded)
        note_failed_recording(recorded.error());
}

void FastModel::note_failed_recording(const Error& why) {
    ++failed_recordings_;
    record_after_ = steps_ + kStepsAfterFailure;
    warning_ = fmt::format("decode steps are launched kernel by kernel, because they could not be "
                           "recorded as a graph{}: {}",
                           failed_recordings_ < kRecordingFailuresMax ? " (tried again later)" : "",
                           why.message);
}

} // namespace berth::engine::fast
