// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/queue.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace berth::engine::fast {

// A decode step for so many rows, as graphs of a few layers each, or one of all.
struct RecordedStep {
    struct Piece {
        uint32_t first_layer = 0;
        uint32_t layers = 0; // 0: the head alone
        std::unique_ptr<RecordedGraph> graph;
    };
    uint32_t rows = 0;
    uint32_t layers_each = 0;
    uint32_t sections = 0; // above 0: one graph that looks at the gate by itself, so many times
    std::vector<Piece> pieces;
    std::atomic<bool> ready = false;
    std::atomic<bool> failed = false; // it never will be ready
};

// The steps that were recorded, one for each number of rows that is computed. Recording is the
// engine's; what takes long, making the recordings ready to start, is done by a thread of this one.
// The queue outlives it.
class GraphShelf {
  public:
    GraphShelf();
    ~GraphShelf();
    GraphShelf(const GraphShelf&) = delete;
    GraphShelf& operator=(const GraphShelf&) = delete;

    // Rows that a step of `rows` is filled up to.
    static uint32_t rows_for(uint32_t rows, uint32_t rows_max);

    // Null while there is none; it may not be ready yet.
    RecordedStep* find(uint32_t rows) const;
    // In the place of an earlier one, which must not be under way.
    void keep(std::unique_ptr<RecordedStep> step);
    // Waits until all that is here is ready.
    void settle();
    // The first error of making ready, once.
    Status take_error();

  private:
    void prepare_all(const std::stop_token& stop);

    std::map<uint32_t, std::unique_ptr<RecordedStep>> steps_; // the engine's thread alone
    std::mutex mutex_;                                        // guards what follows
    std::condition_variable_any changed_;
    std::vector<RecordedStep*> waiting_;
    RecordedStep* preparing_ = nullptr;
    Status error_;
    std::jthread thread_; // last: it uses the others
};

} // namespace berth::engine::fast
