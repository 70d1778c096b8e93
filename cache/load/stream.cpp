// SPDX-License-Identifier: Apache-2.0
#include "cache/load/stream.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace berth {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kProgressPeriod = std::chrono::milliseconds(100);
constexpr uint64_t kHostChunkBytes = uint64_t{8} << 20;
constexpr uint64_t kDeviceChunkBytes = uint64_t{4} << 20;
constexpr int kHostThreadsMax = 8;
constexpr int kDeviceThreadsMax = 12;

struct ReadyChunk {
    size_t chunk = 0;
    int slot = 0;
};

// What reader threads and the device's thread share. mutex_ guards everything but the chunks'
// bytes, which belong to whoever has the slot; nothing is locked inside of it.
class Exchange {
  public:
    Exchange(size_t chunk_count, int readers, int slots)
        : chunk_count_(chunk_count), readers_(readers) {
        for (int slot = 0; slot < slots; ++slot)
            free_.push_back(slot);
    }

    // A reader's next piece of work, with a slot if `with_slot`; nothing: end.
    std::optional<ReadyChunk> take(bool with_slot) {
        std::unique_lock lock(mutex_);
        if (with_slot)
            changed_.wait(lock, [&] { return error_ || next_ == chunk_count_ || !free_.empty(); });
        if (error_ || next_ == chunk_count_)
            return std::nullopt;
        ReadyChunk work{next_++, 0};
        if (with_slot) {
            work.slot = free_.front();
            free_.pop_front();
        }
        return work;
    }
    void finish_read(const ReadyChunk& work, uint64_t bytes, bool with_slot) {
        std::lock_guard lock(mutex_);
        bytes_done_ += bytes;
        if (with_slot)
            ready_.push_back(work);
        changed_.notify_all();
    }
    void give_slot_back(int slot) {
        std::lock_guard lock(mutex_);
        free_.push_back(slot);
        changed_.notify_all();
    }
    std::optional<ReadyChunk> take_ready() {
        std::lock_guard lock(mutex_);
        if (ready_.empty() || error_)
            return std::nullopt;
        ReadyChunk work = ready_.front();
        ready_.pop_front();
        return work;
    }
    // Until something is ready, no reader is left, an error came, or the next progress is due.
    void wait_for_readers() {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kProgressPeriod,
                          [&] { return error_ || readers_ == 0 || !ready_.empty(); });
    }
    void reader_ended() {
        std::lock_guard lock(mutex_);
        --readers_;
        changed_.notify_all();
    }
    void fail_with(const Error& error) {
        std::lock_guard lock(mutex_);
        if (!error_)
            error_ = error;
        changed_.notify_all();
    }
    // Nothing more comes: all was read and taken, or an error ended it.
    bool ended() {
        std::lock_guard lock(mutex_);
        return error_ || (readers_ == 0 && ready_.empty());
    }
    uint64_t bytes_done() {
        std::lock_guard lock(mutex_);
        return bytes_done_;
    }
    Status status() {
        std::lock_guard lock(mutex_);
        if (error_)
            return fail(*error_);
        return {};
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    const size_t chunk_count_;
    size_t next_ = 0;
    int readers_;
    std::deque<int> free_;
    std::deque<ReadyChunk> ready_;
    uint64_t bytes_done_ = 0;
    std::optional<Error> error_;
};

// Calls back at most once a period; first before anything is read.
class ProgressTicker {
  public:
    ProgressTicker(const StreamProgress& progress, uint64_t total)
        : progress_(progress), total_(total) {}
    Status tick(uint64_t done) {
        Clock::time_point now = Clock::now();
        if (!progress_ || now < due_)
            return {};
        due_ = now + kProgressPeriod;
        return progress_(done, total_);
    }

  private:
    const StreamProgress& progress_;
    uint64_t total_;
    Clock::time_point due_ = Clock::now();
};

void read_chunks(ChunkedLoad& load, Exchange& exchange, std::byte* base, bool with_slots) {
    std::vector<std::byte> scratch;
    while (auto work = exchange.take(with_slots)) {
        const Chunk& chunk = load.chunks()[work->chunk];
        std::byte* to = with_slots ? base + static_cast<uint64_t>(work->slot) * load.chunk_bytes()
                                   : base + chunk.offset;
        if (Status filled = load.fill(chunk, to, scratch); !filled) {
            exchange.fail_with(filled.error());
            break;
        }
        exchange.finish_read(*work, chunk.stored_bytes, with_slots);
    }
    exchange.reader_ended();
}

// The device's side of the ring: one copy under way per lane; a slot is free again once its lane
// was waited for.
class Copier {
  public:
    Copier(const ChunkedLoad& load, Device& device, WritableSegment& segment, const std::byte* ring,
           Exchange& exchange)
        : load_(load), device_(device), segment_(segment), ring_(ring), exchange_(exchange) {
        slots_.fill(kNoSlot);
    }
    Status start(const ReadyChunk& work) {
        BERTH_TRY(settle(lane_));
        const Chunk& chunk = load_.chunks()[work.chunk];
        const std::byte* from = ring_ + static_cast<uint64_t>(work.slot) * load_.chunk_bytes();
        BERTH_TRY(device_.start_copy_to_device(static_cast<int>(lane_),
                                               segment_.data() + chunk.offset, from, chunk.bytes));
        slots_[lane_] = work.slot;
        lane_ = (lane_ + 1) % slots_.size();
        return {};
    }
    // Waits for the oldest copy under way; false: there is none.
    Result<bool> settle_oldest() {
        for (size_t step = 0; step < slots_.size(); ++step) {
            size_t lane = (lane_ + step) % slots_.size();
            if (slots_[lane] == kNoSlot)
                continue;
            BERTH_TRY(settle(lane));
            return true;
        }
        return false;
    }
    Status settle_all() {
        for (size_t lane = 0; lane < slots_.size(); ++lane)
            BERTH_TRY(settle(lane));
        return {};
    }

  private:
    static constexpr int kNoSlot = -1;

    Status settle(size_t lane) {
        if (slots_[lane] == kNoSlot)
            return {};
        BERTH_TRY(device_.wait_lane(static_cast<int>(lane)));
        exchange_.give_slot_back(std::exchange(slots_[lane], kNoSlot));
        return {};
    }

    const ChunkedLoad& load_;
    Device& device_;
    WritableSegment& segment_;
    const std::byte* ring_;
    Exchange& exchange_;
    std::array<int, Device::kLanes> slots_;
    size_t lane_ = 0;
};

// One round: start what is ready, else settle a copy, else wait.
Status copy_round(Copier& copier, Exchange& exchange) {
    if (auto work = exchange.take_ready())
        return copier.start(*work);
    BERTH_ASSIGN(bool settled, copier.settle_oldest());
    if (!settled)
        exchange.wait_for_readers();
    return {};
}

std::vector<std::jthread> start_readers(ChunkedLoad& load, Exchange& exchange, std::byte* base,
                                        int count, bool with_slots) {
    std::vector<std::jthread> readers;
    for (int index = 0; index < count; ++index)
        readers.emplace_back([&load, &exchange, base, with_slots] {
            read_chunks(load, exchange, base, with_slots);
        });
    return readers;
}

Status stream_direct(ChunkedLoad& load, WritableSegment& segment, const StreamShape& shape,
                     const StreamProgress& progress) {
    Exchange exchange(load.chunks().size(), shape.threads, 0);
    ProgressTicker ticker(progress, load.bytes_to_read());
    BERTH_TRY(ticker.tick(0));
    {
        std::vector<std::jthread> readers =
            start_readers(load, exchange, segment.data(), shape.threads, false);
        while (!exchange.ended()) {
            exchange.wait_for_readers();
            if (Status told = ticker.tick(exchange.bytes_done()); !told)
                exchange.fail_with(told.error());
        }
    }
    return exchange.status();
}

Status stream_through_ring(ChunkedLoad& load, Device& device, WritableSegment& segment,
                           const StreamShape& shape, const StreamProgress& progress) {
    BERTH_ASSIGN(HostBuffer ring, device.create_host_buffer(shape.ring_bytes()));
    Exchange exchange(load.chunks().size(), shape.threads, shape.slots);
    ProgressTicker ticker(progress, load.bytes_to_read());
    BERTH_TRY(ticker.tick(0));
    Copier copier(load, device, segment, ring.mapping.data(), exchange);
    {
        std::vector<std::jthread> readers =
            start_readers(load, exchange, ring.mapping.data(), shape.threads, true);
        while (!exchange.ended()) {
            Status done = copy_round(copier, exchange);
            if (done)
                done = ticker.tick(exchange.bytes_done());
            if (!done)
                exchange.fail_with(done.error());
        }
    }
    // The ring is freed on return: no copy may read from it any more, after an error neither.
    Status settled = copier.settle_all();
    BERTH_TRY(exchange.status());
    BERTH_TRY(settled);
    return device.synchronize();
}

} // namespace

StreamShape stream_shape(DeviceKind kind, int threads) {
    bool on_host = kind == DeviceKind::kHost;
    int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    StreamShape shape;
    shape.threads =
        threads > 0 ? threads : std::min(cores, on_host ? kHostThreadsMax : kDeviceThreadsMax);
    shape.chunk_bytes = on_host ? kHostChunkBytes : kDeviceChunkBytes;
    // Two for each reader (one filled, one on its way) and one for each lane.
    shape.slots = on_host ? 0 : 2 * shape.threads + Device::kLanes;
    return shape;
}

Status stream(ChunkedLoad& load, Device& device, WritableSegment& segment, const StreamShape& shape,
              const StreamProgress& progress) {
    if (shape.slots == 0)
        return stream_direct(load, segment, shape, progress);
    return stream_through_ring(load, device, segment, shape, progress);
}

} // namespace berth
