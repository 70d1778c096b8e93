// SPDX-License-Identifier: Apache-2.0
#include "cache/load/drain.h"

#include "cache/load/exchange.h"
#include "cache/load/progress_ticker.h"
#include "cache/memory/numa.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace berth {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
constexpr int kThreadsMax = 8;
constexpr int kSlotsAhead = 2; // one being filled, one that waits for a thread

struct Piece {
    size_t segment = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

std::vector<Piece> cut(std::span<const DeviceExtent> segments) {
    std::vector<Piece> pieces;
    for (size_t index = 0; index < segments.size(); ++index)
        for (uint64_t at = 0; at < segments[index].bytes; at += kPieceBytes)
            pieces.push_back({index, at, std::min(kPieceBytes, segments[index].bytes - at)});
    return pieces;
}

uint64_t sum_of(const std::vector<Piece>& pieces) {
    uint64_t bytes = 0;
    for (const Piece& piece : pieces)
        bytes += piece.bytes;
    return bytes;
}

int threads_or(int threads) {
    int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    return threads > 0 ? threads : std::min(cores, kThreadsMax);
}

// Slots between the device's thread, which fills them, and the threads that empty them.
// Thread-safe.
class Slots {
  public:
    struct Filled {
        Piece piece;
        int slot = 0;
    };
    explicit Slots(int count) {
        for (int slot = 0; slot < count; ++slot)
            free_.push_back(slot);
    }

    // Waits a while for a slot; nothing: there is none yet, or an error came.
    std::optional<int> take_free() {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kProgressPeriod, [&] { return error_ || !free_.empty(); });
        if (error_ || free_.empty())
            return std::nullopt;
        int slot = free_.back();
        free_.pop_back();
        return slot;
    }
    void fill(const Filled& filled) {
        std::lock_guard lock(mutex_);
        filled_.push_back(filled);
        changed_.notify_all();
    }
    // Nothing: all is done, or an error ended it.
    std::optional<Filled> take_filled() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return error_ || is_last_ || !filled_.empty(); });
        if (error_ || filled_.empty())
            return std::nullopt;
        Filled filled = filled_.front();
        filled_.pop_front();
        return filled;
    }
    void give_back(const Filled& filled) {
        std::lock_guard lock(mutex_);
        free_.push_back(filled.slot);
        bytes_done_ += filled.piece.bytes;
        changed_.notify_all();
    }
    void fail_with(const Error& error) {
        std::lock_guard lock(mutex_);
        if (!error_)
            error_ = error;
        changed_.notify_all();
    }
    void no_more() {
        std::lock_guard lock(mutex_);
        is_last_ = true;
        changed_.notify_all();
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
    std::mutex mutex_; // guards all below
    std::condition_variable changed_;
    std::deque<int> free_;
    std::deque<Filled> filled_;
    uint64_t bytes_done_ = 0;
    bool is_last_ = false;
    std::optional<Error> error_;
};

Status drain_in_place(std::span<const DeviceExtent> segments, int threads, const DrainSink& sink,
                      const StreamProgress& progress) {
    std::vector<Piece> pieces = cut(segments);
    Exchange exchange(pieces.size(), threads, 0);
    ProgressTicker ticker(progress, sum_of(pieces));
    BERTH_TRY(ticker.tick(0));
    auto work_off = [&] {
        while (auto work = exchange.take(false)) {
            const Piece& piece = pieces[work->tile];
            std::span<const std::byte> bytes(segments[piece.segment].data + piece.offset,
                                             piece.bytes);
            if (Status done = sink(piece.segment, piece.offset, bytes); !done) {
                exchange.fail_with(done.error());
                break;
            }
            exchange.finish_read(*work, piece.bytes, false);
        }
        exchange.reader_ended();
    };
    {
        std::vector<std::jthread> workers;
        for (int index = 0; index < threads; ++index)
            workers.emplace_back(work_off);
        while (!exchange.ended()) {
            exchange.wait_for_readers(kProgressPeriod);
            if (Status told = ticker.tick(exchange.bytes_done()); !told)
                exchange.fail_with(told.error());
        }
    }
    return exchange.status();
}

// The device's side: fills slots until all pieces are on their way.
Status fill_slots(Device& device, std::span<const DeviceExtent> segments, std::byte* staging,
                  Slots& slots, const StreamProgress& progress) {
    std::vector<Piece> pieces = cut(segments);
    ProgressTicker ticker(progress, sum_of(pieces));
    for (const Piece& piece : pieces) {
        std::optional<int> slot;
        while (!slot) {
            BERTH_TRY(ticker.tick(slots.bytes_done()));
            BERTH_TRY(slots.status());
            slot = slots.take_free();
        }
        std::byte* to = staging + static_cast<uint64_t>(*slot) * kPieceBytes;
        BERTH_TRY(
            device.copy_to_host(to, segments[piece.segment].data + piece.offset, piece.bytes));
        slots.fill({piece, *slot});
    }
    return {};
}

Status drain_through_slots(Device& device, std::span<const DeviceExtent> segments, int threads,
                           const DrainSink& sink, const StreamProgress& progress) {
    int count = threads + kSlotsAhead;
    BERTH_ASSIGN(HostBuffer staging,
                 device.create_host_buffer(static_cast<uint64_t>(count) * kPieceBytes));
    Slots slots(count);
    int node = device.capabilities().numa_node;
    auto work_off = [&] {
        (void)prefer_node(node);
        while (auto filled = slots.take_filled()) {
            const Piece& piece = filled->piece;
            const std::byte* from =
                staging.mapping.data() + static_cast<uint64_t>(filled->slot) * kPieceBytes;
            if (Status done = sink(piece.segment, piece.offset, {from, piece.bytes}); !done) {
                slots.fail_with(done.error());
                break;
            }
            slots.give_back(*filled);
        }
    };
    {
        std::vector<std::jthread> workers;
        for (int index = 0; index < threads; ++index)
            workers.emplace_back(work_off);
        if (Status filled = fill_slots(device, segments, staging.mapping.data(), slots, progress);
            !filled)
            slots.fail_with(filled.error());
        slots.no_more();
    }
    return slots.status();
}

} // namespace

Status drain(Device& device, std::span<const DeviceExtent> segments, int threads,
             const DrainSink& sink, const StreamProgress& progress) {
    threads = threads_or(threads);
    if (device.capabilities().cpu_addressable)
        return drain_in_place(segments, threads, sink, progress);
    return drain_through_slots(device, segments, threads, sink, progress);
}

uint64_t drain_staging_bytes(DeviceKind kind, int threads) {
    if (kind == DeviceKind::kHost)
        return 0;
    return static_cast<uint64_t>(threads_or(threads) + kSlotsAhead) * kPieceBytes;
}

} // namespace berth
