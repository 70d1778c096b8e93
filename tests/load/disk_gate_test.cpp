// SPDX-License-Identifier: Apache-2.0
// Goal: no more threads are at the disk at once than it was found fastest with, everybody gets a
// turn, and what is measured is the disk and not the waiting for others. Method: real threads; a
// clock that the test moves.
#include "cache/load/disk_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

namespace berth {
namespace {

using namespace std::chrono_literals;
constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(DiskGate, LetsOneThreadInAtATimeWhileNoRateIsKnown) {
    DiskGate gate;
    std::atomic<int> inside{0};
    std::atomic<int> most{0};
    std::atomic<int> turns{0};
    {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < 8; ++thread)
            threads.emplace_back([&] {
                for (int i = 0; i < 200; ++i) {
                    DiskGate::Turn turn = gate.enter();
                    int now = ++inside;
                    int seen = most;
                    while (now > seen && !most.compare_exchange_weak(seen, now)) {
                    }
                    turn.add_bytes(1000);
                    ++turns;
                    --inside;
                }
            });
    }
    EXPECT_EQ(most, 1);
    EXPECT_EQ(turns, 8 * 200);
    EXPECT_EQ(gate.streams(), 1);
}

// A disk of made-up speed: turns that run at once share it, and end together.
class PlayedDisk {
  public:
    explicit PlayedDisk(double (*rate)(int streams)) : rate_(rate) {}

    // So many threads read 4 MiB each, as far at once as the gate lets them in.
    void read(DiskGate& gate, int threads) {
        std::vector<std::jthread> readers;
        for (int i = 0; i < threads; ++i)
            readers.emplace_back([&] {
                DiskGate::Turn turn = gate.enter();
                int streams = ++inside_;
                // Each sees the disk as its neighbours at this moment leave it.
                auto took = std::chrono::duration<double>(4.0 * kMiB / rate_(streams));
                nanoseconds_ += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
                turn.add_bytes(4 * kMiB);
                --inside_;
            });
    }
    DiskGate::Now clock() {
        return [this] {
            return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(nanoseconds_));
        };
    }
    void idle(std::chrono::nanoseconds time) { nanoseconds_ += time.count(); }

  private:
    double (*rate_)(int);
    std::atomic<int> inside_{0};
    std::atomic<int64_t> nanoseconds_{0};
};

TEST(DiskGate, EndsAtOneStreamWhereMoreAreSlower) {
    PlayedDisk disk([](int streams) { return streams == 1 ? 1.5e9 : 1.0e9; });
    DiskGate gate(disk.clock());
    for (int i = 0; i < 60; ++i)
        disk.read(gate, 8);
    EXPECT_EQ(gate.streams(), 1);
}

TEST(DiskGate, TimeInWhichNobodyReadsIsNotTheDisks) {
    PlayedDisk disk([](int) { return 1e9; });
    std::optional<double> alone;
    for (auto pause : {0ns, 1'000'000'000ns}) {
        DiskGate gate(disk.clock());
        for (int i = 0; i < 40; ++i) {
            disk.read(gate, 1);
            disk.idle(pause);
        }
        ASSERT_GT(gate.bytes_per_second(), 0);
        if (!alone)
            alone = gate.bytes_per_second();
        EXPECT_NEAR(gate.bytes_per_second(), *alone, 0.01 * *alone) << pause.count();
    }
}

} // namespace
} // namespace berth
