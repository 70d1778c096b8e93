// SPDX-License-Identifier: Apache-2.0
#include "cache/load/stream.h"

#include "cache/checkpoint/fault.h"
#include "cache/load/exchange.h"
#include "cache/load/progress_ticker.h"
#include "cache/load/ring.h"
#include "cache/load/tile_reader.h"
#include "cache/memory/numa.h"
#include "cache/weights/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace berth {

namespace {

constexpr uint64_t kHostTileBytes = uint64_t{8} << 20;
constexpr uint64_t kDeviceTileBytes = uint64_t{4} << 20;
constexpr int kHostThreadsMax = 8;
constexpr int kDeviceThreadsMax = 12;

Status place(const StreamJob& job, const Tile& tile, const Placement& placement,
             std::span<const std::byte> bytes) {
    std::byte* segment = job.targets[placement.rank].data;
    const std::byte* from = bytes.data() + placement.from;
    std::byte* to = segment + placement.to;
    if (placement.transform == Transform::kQuantise) {
        uint64_t element = bits_of(tile.dtype) / 8;
        std::vector<std::byte> aligned; // a file may put a tensor at any byte
        if (reinterpret_cast<uintptr_t>(from) % element != 0) {
            uint64_t stretch = (placement.rows - 1) * placement.pitch + placement.width;
            aligned.assign(from, from + stretch);
            from = aligned.data();
        }
        auto* scales = reinterpret_cast<float*>(segment + placement.scales_to);
        BERTH_ASSIGN(uint64_t bad, quantise_rows(tile.dtype, from, placement.pitch, placement.rows,
                                                 placement.width / element, to, scales));
        if (bad > 0)
            return not_finite(job, tile, bad);
        return {};
    }
    if (placement.is_contiguous()) {
        std::memcpy(to, from, placement.source_bytes());
        return {};
    }
    for (uint64_t row = 0; row < placement.rows; ++row)
        std::memcpy(to + row * placement.width, from + row * placement.pitch, placement.width);
    return {};
}

// The bytes of the file are the bytes of the segment: read where they belong.
bool goes_straight(const Tile& tile) {
    return tile.placements.size() == 1 && !tile.is_cast &&
           tile.placements[0].transform == Transform::kCopy && tile.placements[0].is_contiguous() &&
           tile.placements[0].source_bytes() == tile.stored_bytes;
}

Status read_and_place(const StreamJob& job, const Tile& tile, TileReader& reader, PageBuffer& slot,
                      uint64_t slot_bytes) {
    if (goes_straight(tile)) {
        const Placement& placement = tile.placements[0];
        return job.files.read(tile.file, tile.offset,
                              {job.targets[placement.rank].data + placement.to, tile.bytes});
    }
    if (slot.bytes().empty())
        slot = PageBuffer(slot_bytes);
    BERTH_ASSIGN(std::span<const std::byte> bytes, reader.read(tile, slot.bytes()));
    for (const Placement& placement : tile.placements)
        BERTH_TRY(place(job, tile, placement, bytes));
    return {};
}

void read_onto_host(const StreamJob& job, const StreamShape& shape, Exchange& exchange) {
    TileReader reader(job.files, shape.slot_bytes, job.plan.has_casts);
    PageBuffer slot;
    while (auto work = exchange.take(false)) {
        const Tile& tile = job.plan.tiles[work->tile];
        if (Status done = read_and_place(job, tile, reader, slot, shape.slot_bytes); !done) {
            exchange.fail_with(done.error());
            break;
        }
        exchange.finish_read(*work, tile.stored_bytes, false);
    }
    exchange.reader_ended();
}

void read_into_ring(const StreamJob& job, const StreamShape& shape, std::byte* ring,
                    Exchange& exchange) {
    // Nearer is faster; where it cannot be had, far works too.
    (void)prefer_node(job.targets[0].device->capabilities().numa_node);
    TileReader reader(job.files, shape.slot_bytes, job.plan.has_casts);
    while (auto work = exchange.take(true)) {
        const Tile& tile = job.plan.tiles[work->tile];
        std::span<std::byte> slot(ring + static_cast<uint64_t>(work->slot) * shape.slot_bytes,
                                  shape.slot_bytes);
        auto bytes = reader.read(tile, slot);
        if (!bytes) {
            exchange.fail_with(bytes.error());
            break;
        }
        work->bytes = *bytes;
        exchange.finish_read(*work, tile.stored_bytes, true);
    }
    exchange.reader_ended();
}

Status stream_onto_host(const StreamJob& job, const StreamShape& shape,
                        const StreamProgress& progress) {
    Exchange exchange(job.plan.tiles.size(), shape.threads, 0);
    ProgressTicker ticker(progress, job.plan.bytes_to_read);
    BERTH_TRY(ticker.tick(0));
    {
        std::vector<std::jthread> readers;
        for (int index = 0; index < shape.threads; ++index)
            readers.emplace_back([&] { read_onto_host(job, shape, exchange); });
        while (!exchange.ended()) {
            exchange.wait_for_readers(kProgressPeriod);
            if (Status told = ticker.tick(exchange.bytes_done()); !told)
                exchange.fail_with(told.error());
        }
    }
    return exchange.status();
}

Status stream_through_ring(const StreamJob& job, const StreamShape& shape,
                           const StreamProgress& progress) {
    uint64_t ring_bytes = static_cast<uint64_t>(shape.slots) * shape.slot_bytes;
    BERTH_ASSIGN(HostBuffer ring, job.targets[0].device->create_host_buffer(ring_bytes));
    Exchange exchange(job.plan.tiles.size(), shape.threads, shape.slots);
    ProgressTicker ticker(progress, job.plan.bytes_to_read);
    BERTH_TRY(ticker.tick(0));
    BERTH_ASSIGN(RingCopier copier, RingCopier::open(job, shape, exchange));
    {
        std::vector<std::jthread> readers;
        for (int index = 0; index < shape.threads; ++index)
            readers.emplace_back(
                [&] { read_into_ring(job, shape, ring.mapping.data(), exchange); });
        while (!exchange.ended()) {
            Result<bool> moved = copier.round();
            if (moved && !*moved)
                exchange.wait_for_readers(kProgressPeriod);
            Status told = ticker.tick(exchange.bytes_done());
            if (!moved || !told)
                exchange.fail_with(!moved ? moved.error() : told.error());
        }
    }
    // The ring is freed on return: no copy may read from it any more, after an error neither.
    Status settled = copier.settle_all();
    BERTH_TRY(exchange.status());
    BERTH_TRY(settled);
    return copier.finish();
}

} // namespace

tl::unexpected<Error> not_finite(const StreamJob& job, const Tile& tile, uint64_t count) {
    return fail_fault({"NotFinite", job.checkpoint.files[tile.file].name,
                       job.checkpoint.tensors[tile.source].stored.name,
                       fmt::format("{} elements that are NaN or infinite", count),
                       "finite weights to quantise",
                       "check the checkpoint, or load it with quantization none"});
}

uint64_t tile_bytes_for(DeviceKind kind) {
    return kind == DeviceKind::kHost ? kHostTileBytes : kDeviceTileBytes;
}

StreamShape stream_shape(DeviceKind kind, int threads, const TilePlan& plan) {
    bool on_host = kind == DeviceKind::kHost;
    int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    StreamShape shape;
    shape.threads =
        threads > 0 ? threads : std::min(cores, on_host ? kHostThreadsMax : kDeviceThreadsMax);
    shape.threads = std::clamp(shape.threads, 1, std::max(1, static_cast<int>(plan.tiles.size())));
    shape.slot_bytes = SourceFiles::slot_bytes(plan.tile_bytes_max);
    // Two for each reader (one filled, one on its way) and one for each lane.
    shape.slots = on_host ? 0 : 2 * shape.threads + Device::kLanes;
    shape.lane_bytes = !on_host && plan.has_quantisation ? plan.tile_bytes_max : 0;
    auto readers = static_cast<uint64_t>(shape.threads);
    shape.host_buffers = on_host ? readers : static_cast<uint64_t>(shape.slots);
    shape.host_buffers += plan.has_casts ? readers : 0;
    return shape;
}

Status stream(const StreamJob& job, const StreamShape& shape, const StreamProgress& progress) {
    if (shape.slots == 0)
        return stream_onto_host(job, shape, progress);
    return stream_through_ring(job, shape, progress);
}

} // namespace berth
