// SPDX-License-Identifier: Apache-2.0
// Goal: a verification reads nothing while somebody of a higher class works, before each of its
// pieces, and yet comes to its end on a node that is never idle. Method: a real gate, and a device
// whose bytes are read by copies, each of which looks at the gate.
#include "scheduler/main/gated_verify.h"

#include "tests/kernels/reference.h"
#include "tests/memory/host_backed_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

constexpr uint64_t kBlock = 64 << 10;
constexpr uint64_t kBlocks = 6;
constexpr int64_t kOnline = 1000;

class LookedAtDevice final : public testing::HostBackedDevice {
  public:
    std::function<void()> on_read;
    Status copy_to_host(std::byte* host, const std::byte* device, uint64_t bytes) override {
        if (on_read)
            on_read();
        return HostBackedDevice::copy_to_host(host, device, bytes);
    }
    Status start_copy_to_device(int, std::byte* device, const std::byte* host,
                                uint64_t bytes) override {
        return host_->copy_to_device(device, host, bytes);
    }
    Status wait_lane(int) override { return {}; }
    Status synchronize() override { return {}; }
};

class GatedVerify : public ::testing::Test {
  protected:
    GatedVerify() {
        bytes_.resize(kBlocks * kBlock);
        test::Random random;
        for (std::byte& byte : bytes_)
            byte = static_cast<std::byte>(random.next() >> 56);
        parts_.segment_bytes = {bytes_.size()};
        parts_.fingerprint_json = parts_.config_json = "{}";
        parts_.fingerprint = std::string(64, '0');
        ManifestEntry entry;
        entry.name = "tensor";
        entry.dtype = DType::kU8;
        entry.shape = {bytes_.size()};
        entry.bytes = bytes_.size();
        entry.checksum = checksum_of(bytes_);
        parts_.entries.push_back(entry);
        gate_ = create_gate_page().value();
        raiser_ = GateRaiser::open(gate_.writable, 1, kOnline).value();
        watcher_ = GateWatcher::open(gate_.read_only, 0).value();
    }

    // A piece is one block of checksums.
    Result<std::vector<std::string>> verify(Nanoseconds gate_max) {
        UniqueFd fd = write_manifest(parts_).value();
        Manifest manifest = Manifest::open(fd, parts_.segment_bytes).value();
        auto writable = device_.create_segment(bytes_.size(), "berth-weights").value();
        EXPECT_TRUE(device_.copy_to_device(writable->data(), bytes_.data(), bytes_.size()));
        Segment sealed = writable->seal().value();
        Mapping mapping = device_.map_read_only(sealed).value();
        return verify_behind(watcher_, device_, manifest, std::span(&mapping, 1),
                             {kBlock, gate_max});
    }

    std::vector<std::byte> bytes_;
    ManifestParts parts_;
    GateFds gate_;
    GateRaiser raiser_;
    GateWatcher watcher_;
    LookedAtDevice device_;
};

TEST_F(GatedVerify, ReadsNothingBehindAClosedGateBeforeAnyPiece) {
    int reads = 0, closed = 0;
    std::vector<std::thread> online;
    // Somebody has work, for a moment; and again after each piece.
    auto work = [&] {
        raiser_.raise();
        online.emplace_back([this] {
            GateWatcher pause = GateWatcher::open(gate_.read_only, 0).value();
            (void)pause.wait(5ms);
            raiser_.lower();
        });
    };
    device_.on_read = [&] {
        ++reads;
        closed += watcher_.closed() ? 1 : 0;
        if (reads < static_cast<int>(kBlocks))
            work();
    };
    work();
    auto different = verify(std::chrono::minutes(10));
    for (std::thread& thread : online)
        thread.join();
    ASSERT_TRUE(different) << different.error().message;
    EXPECT_THAT(*different, IsEmpty());
    EXPECT_EQ(reads, static_cast<int>(kBlocks)) << "one a piece";
    EXPECT_EQ(closed, 0);
}

TEST_F(GatedVerify, ComesToItsEndBehindAGateThatNeverOpens) {
    raiser_.raise();
    int closed = 0;
    device_.on_read = [&] { closed += watcher_.closed() ? 1 : 0; };
    const auto started = std::chrono::steady_clock::now();
    auto different = verify(20ms);
    ASSERT_TRUE(different) << different.error().message;
    EXPECT_THAT(*different, IsEmpty());
    EXPECT_EQ(closed, static_cast<int>(kBlocks));
    EXPECT_GE(std::chrono::steady_clock::now() - started, kBlocks * 20ms) << "it waited for each";
    bytes_[3 * kBlock + 9] ^= std::byte{0x10};
    EXPECT_THAT(verify(1ms).value(), ElementsAre("tensor")) << "and it finds what it is for";
}

} // namespace
} // namespace berth
