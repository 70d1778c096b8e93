// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/queue.h"

#include <map>
#include <vector>

namespace berth::test {

// A device made of this process's memory: kernels run by the emulator, products and chunk attention
// are plain loops, a graph is the list of what was recorded. Counts what it did.
class EmulatedQueue final : public engine::fast::Queue {
  public:
    engine::fast::DeviceFacts facts() const override { return its_facts; }
    Status launch(const engine::fast::Launch& launch) override;
    Status multiply(const engine::fast::LibraryProduct& product) override;
    Status attend_chunk(const engine::fast::ChunkAttention& attention) override;
    Status copy_in(void* device, const void* host, size_t bytes) override;
    Status copy_out(void* host, const void* device, size_t bytes) override;
    Status wait() override;
    Result<std::byte*> host_buffer(size_t bytes) override;
    Status begin_recording() override;
    Result<std::unique_ptr<engine::fast::RecordedGraph>> end_recording() override;
    Result<std::unique_ptr<engine::fast::RecordedGraph>>
    record_gated(const engine::fast::GatedSections& sections) override;
    Result<const uint32_t*> share_word(const std::atomic<uint32_t>* word) override;
    Status start(engine::fast::RecordedGraph& graph) override;

    engine::fast::DeviceFacts its_facts{3, 232448};
    uint32_t launches = 0, products = 0, waits = 0, graphs_started = 0;
    uint32_t queued_layers = 0; // products of the last matrix of a layer since the last wait
    bool refuses_recording = false;
    std::function<void(uint32_t section)> before_look; // of a graph that looks by itself

  private:
    struct Recorded {
        engine::fast::Launch launch;
        std::vector<std::byte> params;
    };
    class Graph;

    bool recording_ = false;
    std::vector<Recorded> recorded_;
    std::vector<std::unique_ptr<std::byte[]>> host_;
};

} // namespace berth::test
