// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/step_input.h"

#include <algorithm>

namespace berth::engine::fast {

namespace {

// Groups for chunks from `first` on, each with a context of its own until the bound.
std::vector<ChunkGroup> group_chunks(std::span<const StepItem* const> items, uint32_t first_row,
                                     uint32_t contexts_max) {
    std::vector<ChunkGroup> groups;
    uint32_t row = first_row;
    for (const StepItem* item : items) {
        const auto queries = static_cast<uint32_t>(item->tokens.size());
        const uint32_t context = item->position + queries;
        if (groups.empty() || groups.back().contexts + context > contexts_max)
            groups.push_back({row, 0, 0, 0, 0, 0, 0});
        ChunkGroup& group = groups.back();
        ++group.items;
        group.queries += queries;
        group.contexts += context;
        group.queries_max = std::max(group.queries_max, queries);
        group.context_max = std::max(group.context_max, context);
        row += queries;
    }
    uint32_t at = 0;
    for (ChunkGroup& group : groups) {
        group.starts_at = at;
        at += 3 * group.items + 2;
    }
    return groups;
}

} // namespace

uint32_t chunk_words(const FastLimits& limits) {
    return 5 * limits.sequences; // groups of one item each: 3 + 2
}

StepInput::StepInput(const Buffers& buffers, const FastLimits& limits, std::vector<float> inverse,
                     std::byte* host)
    : buffers_(buffers), limits_(limits), host_(host) {
    std::fill_n(host_, buffers.input_words * sizeof(int32_t), std::byte{0});
    std::copy(inverse.begin(), inverse.end(), host_of(buffers_.inverse));
}

void StepInput::write_row(uint32_t row, int32_t token, int32_t position, uint32_t sequence) {
    host_of(buffers_.tokens)[row] = token;
    host_of(buffers_.positions)[row] = position;
    host_of(buffers_.sequences)[row] = static_cast<int32_t>(sequence);
}

void StepInput::set_look(uint32_t open_word, uint32_t next_section) {
    host_of(buffers_.header)->open_word = open_word;
    host_of(buffers_.header)->next_section = next_section;
}

void StepInput::write_tables(std::span<const StepItem* const> sequences) {
    size_t pitch = 1;
    for (const StepItem* item : sequences)
        pitch = std::max(pitch, item->blocks.size());
    pitch = std::min<size_t>(pitch, limits_.blocks_each);
    host_of(buffers_.header)->table_pitch = static_cast<int32_t>(pitch);
    int32_t* to = host_of(buffers_.tables);
    for (const StepItem* item : sequences) {
        const size_t count = std::min(item->blocks.size(), pitch);
        std::copy_n(item->blocks.begin(), count, to);
        std::fill(to + count, to + pitch, 0);
        to += pitch;
    }
    used_words_ = static_cast<size_t>(to - reinterpret_cast<int32_t*>(host_));
}

StepShape StepInput::write(std::span<const StepItem> items, uint32_t contexts_max) {
    std::vector<const StepItem*> ordered;
    for (const bool single : {true, false})
        for (const StepItem& item : items)
            if ((item.tokens.size() == 1) == single)
                ordered.push_back(&item);
    StepShape shape;
    std::vector<uint32_t> last_row(items.size());
    for (uint32_t sequence = 0; sequence < ordered.size(); ++sequence) {
        const StepItem& item = *ordered[sequence];
        shape.singles += item.tokens.size() == 1 ? 1 : 0;
        for (uint32_t i = 0; i < item.tokens.size(); ++i)
            write_row(shape.rows++, item.tokens[i], static_cast<int32_t>(item.position + i),
                      sequence);
        last_row[static_cast<size_t>(&item - items.data())] = shape.rows - 1;
    }
    for (size_t index = 0; index < items.size(); ++index)
        if (items[index].samples)
            host_of(buffers_.logit_rows)[shape.logit_rows++] =
                static_cast<int32_t>(last_row[index]);
    const std::span<const StepItem* const> chunks = std::span(ordered).subspan(shape.singles);
    shape.chunks = group_chunks(chunks, shape.singles, contexts_max);
    uint32_t next = 0;
    for (const ChunkGroup& group : shape.chunks) {
        int32_t* queries = host_of(buffers_.chunks) + group.starts_at;
        int32_t* contexts = queries + group.items + 1;
        int32_t* sequences = contexts + group.items + 1;
        queries[0] = contexts[0] = 0;
        for (uint32_t i = 0; i < group.items; ++i, ++next) {
            const auto count = static_cast<int32_t>(chunks[next]->tokens.size());
            queries[i + 1] = queries[i] + count;
            contexts[i + 1] = contexts[i] + static_cast<int32_t>(chunks[next]->position) + count;
            sequences[i] = static_cast<int32_t>(shape.singles + next);
        }
    }
    write_tables(ordered);
    return shape;
}

StepShape StepInput::write_singles(std::span<const StepItem> items, uint32_t rows) {
    std::vector<const StepItem*> ordered;
    for (uint32_t row = 0; row < rows; ++row) {
        host_of(buffers_.logit_rows)[row] = static_cast<int32_t>(row);
        if (row >= items.size()) {
            write_row(row, 0, -1, 0);
            continue;
        }
        const StepItem& item = items[row];
        write_row(row, item.tokens[0], static_cast<int32_t>(item.position), row);
        ordered.push_back(&item);
    }
    write_tables(ordered);
    return {rows, rows, rows, {}};
}

} // namespace berth::engine::fast
