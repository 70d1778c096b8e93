// SPDX-License-Identifier: Apache-2.0
// Goal: one contract for every backend. Method: each test runs on a host device and on the first
// visible GPU; without one its cuda half is skipped and says why. Second processes are real ones.
#include "cache/memory/device.h"

#include "cache/memory/host_meter.h"
#include "tests/memory/child.h"
#include "tests/memory/pattern.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

using test::Child;
using test::hash_of;
using test::pattern_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSegmentBytes = 8 * kMiB;

class DeviceContract : public ::testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        ::setenv("BERTH_GRANT_STEP", "4Mi", 1);
        auto opened = open_device(GetParam());
        if (!opened && opened.error().code == ErrorCode::kUnsupported)
            GTEST_SKIP() << "no " << GetParam() << " device here: " << opened.error().message;
        ASSERT_TRUE(opened.has_value()) << opened.error().message;
        device_ = std::move(*opened);
    }

    bool is_host() const { return device_->capabilities().kind == DeviceKind::kHost; }

    std::unique_ptr<WritableSegment> filled(const std::vector<std::byte>& bytes) {
        auto writable = device_->create_segment(bytes.size(), "berth-weights");
        EXPECT_TRUE(writable.has_value()) << (writable ? "" : writable.error().message);
        auto copied = device_->copy_to_device((*writable)->data(), bytes.data(), bytes.size());
        EXPECT_TRUE(copied.has_value()) << (copied ? "" : copied.error().message);
        return std::move(*writable);
    }

    Segment sealed(const std::vector<std::byte>& bytes) {
        auto segment = filled(bytes)->seal();
        EXPECT_TRUE(segment.has_value()) << (segment ? "" : segment.error().message);
        return std::move(*segment);
    }

    std::string hash_of_mapping(const Mapping& mapping) {
        std::vector<std::byte> copy(mapping.bytes());
        auto copied = device_->copy_to_host(copy.data(), mapping.data(), copy.size());
        EXPECT_TRUE(copied.has_value()) << (copied ? "" : copied.error().message);
        return hash_of(copy);
    }

    // Memory that this process's grants really hold, as the kernel or the driver says.
    uint64_t backed_by_grants() {
        if (!is_host())
            return device_->memory()->used_bytes;
        uint64_t sum = 0;
        for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code error;
            auto target = std::filesystem::read_symlink(entry.path(), error).string();
            struct stat facts{};
            if (target.find("berth-grant:") != std::string::npos &&
                ::stat(entry.path().c_str(), &facts) == 0)
                sum += static_cast<uint64_t>(facts.st_blocks) * 512;
        }
        return sum;
    }

    std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Backends, DeviceContract, ::testing::Values("host-0", "cuda"),
                         [](const auto& backend) {
                             return std::string(backend.param).substr(0, 4);
                         });

TEST_P(DeviceContract, SaysWhatItIs) {
    const DeviceCapabilities& facts = device_->capabilities();
    EXPECT_FALSE(facts.name.empty());
    EXPECT_EQ(facts.grant_step_bytes % facts.granularity_bytes, 0U);
    EXPECT_EQ(is_host(), facts.compute_capability.empty());
    EXPECT_EQ(is_host(), facts.driver_version.empty());
    EXPECT_THAT(device_->id(), is_host() ? StartsWith("host-0") : StartsWith("GPU-"));
    auto memory = device_->memory();
    ASSERT_TRUE(memory.has_value());
    EXPECT_GT(memory->total_bytes, memory->used_bytes);
    auto again = open_device(device_->id());
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_EQ((*again)->id(), device_->id());
}

TEST_P(DeviceContract, SealedBytesReachAnotherProcess) {
    auto pattern = pattern_of(kSegmentBytes, 1);
    Segment segment = sealed(pattern);
    Child reader = Child::start({"read", GetParam(), std::to_string(segment.bytes)});
    reader.send("segment", {segment.fd.get()});
    EXPECT_EQ(reader.receive().payload, hash_of(pattern));
}

TEST_P(DeviceContract, MappingOutlivesDescriptorAndDevice) {
    auto pattern = pattern_of(kSegmentBytes, 2);
    Segment segment = sealed(pattern);
    auto mapping = device_->map_read_only(segment);
    ASSERT_TRUE(mapping.has_value()) << mapping.error().message;
    segment.fd.reset();
    device_ = std::move(*open_device(GetParam()));
    EXPECT_EQ(hash_of_mapping(*mapping), hash_of(pattern));
}

TEST_P(DeviceContract, DescriptorAloneKeepsBytes) {
    auto pattern = pattern_of(kSegmentBytes, 3);
    Segment segment = sealed(pattern);
    {
        auto once = device_->map_read_only(segment);
    }
    auto again = device_->map_read_only(segment);
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_EQ(hash_of_mapping(*again), hash_of(pattern));
}

TEST_P(DeviceContract, ReadersReadOnWhenTheOwnerIsKilled) {
    Child owner = Child::start({"own", GetParam(), std::to_string(kSegmentBytes)});
    Packet handed = owner.receive();
    ASSERT_EQ(handed.fds.size(), 1U) << handed.payload;
    Segment segment{std::move(handed.fds.front()), kSegmentBytes};
    auto mine = device_->map_read_only(segment);
    ASSERT_TRUE(mine.has_value()) << mine.error().message;
    Child reader = Child::start({"read", GetParam(), std::to_string(kSegmentBytes)});
    reader.send("segment", {segment.fd.get()});
    ASSERT_EQ(reader.receive().payload, handed.payload);

    EXPECT_TRUE(WIFSIGNALED(owner.kill()));
    reader.send("again", {});
    EXPECT_EQ(reader.receive().payload, handed.payload);
    EXPECT_EQ(hash_of_mapping(*mine), handed.payload);
    // And a newcomer comes in by the descriptor alone.
    Child newcomer = Child::start({"read", GetParam(), std::to_string(kSegmentBytes)});
    newcomer.send("segment", {segment.fd.get()});
    EXPECT_EQ(newcomer.receive().payload, handed.payload);
}

TEST_P(DeviceContract, WriterDiesAloneAndBytesStay) {
    auto pattern = pattern_of(kSegmentBytes, 4);
    Segment segment = sealed(pattern);
    auto mapping = device_->map_read_only(segment);
    ASSERT_TRUE(mapping.has_value());
    Child writer = Child::start({"write", GetParam(), std::to_string(segment.bytes)});
    writer.send("segment", {segment.fd.get()});
    EXPECT_EQ(writer.receive().payload, "mapped");
    int status = writer.wait();
#ifdef BERTH_SANITIZED
    // The sanitizer's handler turns the fault into a report and an exit.
    EXPECT_NE(status, 0);
#else
    if (is_host()) {
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << describe_exit(status);
    } else {
        EXPECT_EQ(WEXITSTATUS(status), 7) << describe_exit(status);
        EXPECT_THAT(writer.receive().payload, HasSubstr("cuMemcpyHtoDAsync"));
    }
#endif
    EXPECT_EQ(hash_of_mapping(*mapping), hash_of(pattern));
}

TEST_P(DeviceContract, SealsOnceAndOnlyWholeSegments) {
    EXPECT_EQ(device_->create_segment(0, "berth-weights").error().code,
              ErrorCode::kInvalidArgument);
    auto writable = filled(pattern_of(4096, 5));
    EXPECT_EQ(writable->bytes() % device_->capabilities().granularity_bytes, 0U);
    auto segment = writable->seal();
    ASSERT_TRUE(segment.has_value());
    EXPECT_EQ(writable->data(), nullptr);
    EXPECT_EQ(writable->seal().error().code, ErrorCode::kFailedPrecondition);
    segment->bytes *= 2;
    EXPECT_FALSE(device_->map_read_only(*segment).has_value());
}

TEST_P(DeviceContract, RefusesMoreThanTheDeviceHas) {
    uint64_t total = device_->memory()->total_bytes;
    auto segment = device_->create_segment(total * 2, "berth-weights");
    ASSERT_FALSE(segment.has_value());
    EXPECT_EQ(segment.error().code, ErrorCode::kResourceExhausted) << segment.error().message;
}

TEST_P(DeviceContract, GrantGrowsAndShrinksInPlaceAndGivesMemoryBack) {
    const uint64_t step = device_->capabilities().grant_step_bytes;
    ASSERT_EQ(step, 4 * kMiB);
    auto grant = device_->create_grant(64 * step);
    ASSERT_TRUE(grant.has_value()) << grant.error().message;
    const std::byte* base = (*grant)->data();
    const uint64_t before = backed_by_grants();

    ASSERT_TRUE((*grant)->resize(2 * step - 1).has_value());
    EXPECT_EQ((*grant)->bytes(), 2 * step);
    auto low = pattern_of(2 * step, 6);
    ASSERT_TRUE(device_->copy_to_device((*grant)->data(), low.data(), low.size()).has_value());
    ASSERT_TRUE((*grant)->resize(64 * step).has_value());
    auto high = pattern_of(step, 7);
    ASSERT_TRUE(
        device_->copy_to_device((*grant)->data() + 63 * step, high.data(), step).has_value());
    EXPECT_GE(backed_by_grants(), before + 64 * step);

    ASSERT_TRUE((*grant)->resize(2 * step).has_value());
    EXPECT_LE(backed_by_grants(), before + 4 * step);
    EXPECT_EQ((*grant)->data(), base);
    std::vector<std::byte> copy(2 * step);
    ASSERT_TRUE(device_->copy_to_host(copy.data(), (*grant)->data(), copy.size()).has_value());
    EXPECT_EQ(hash_of(copy), hash_of(low));

    ASSERT_TRUE((*grant)->resize(0).has_value());
    EXPECT_LE(backed_by_grants(), before + 2 * step);
    for (int cycle = 0; cycle < 20; ++cycle) {
        ASSERT_TRUE((*grant)->resize(32 * step).has_value());
        ASSERT_TRUE((*grant)->resize(step).has_value());
    }
    grant->reset();
    EXPECT_LE(backed_by_grants(), before);
}

TEST_P(DeviceContract, FailedGrowthLeavesGrantAsItWas) {
    const uint64_t step = device_->capabilities().grant_step_bytes;
    const uint64_t total = device_->memory()->total_bytes;
    auto grant = device_->create_grant(total * 2);
    ASSERT_TRUE(grant.has_value()) << grant.error().message;
    ASSERT_TRUE((*grant)->resize(step).has_value());
    auto low = pattern_of(step, 8);
    ASSERT_TRUE(device_->copy_to_device((*grant)->data(), low.data(), step).has_value());
    const uint64_t before = backed_by_grants();

    auto grown = (*grant)->resize(total * 2);
    ASSERT_FALSE(grown.has_value());
    EXPECT_EQ(grown.error().code, ErrorCode::kResourceExhausted) << grown.error().message;
    EXPECT_EQ((*grant)->bytes(), step);
    EXPECT_LE(backed_by_grants(), before + step);
    EXPECT_EQ((*grant)->resize(total * 3).error().code, ErrorCode::kInvalidArgument);
    std::vector<std::byte> copy(step);
    ASSERT_TRUE(device_->copy_to_host(copy.data(), (*grant)->data(), step).has_value());
    EXPECT_EQ(hash_of(copy), hash_of(low));
    ASSERT_TRUE((*grant)->resize(2 * step).has_value());
}

// Many small copies on all lanes, each lane's slots reused in order: the last one written to a
// place must be the one that is there.
TEST_P(DeviceContract, CopiesOfOneLaneArriveInOrder) {
    constexpr uint64_t kBlock = 64 << 10;
    constexpr int kRounds = 16;
    auto buffer = device_->create_host_buffer(Device::kLanes * kRounds * kBlock);
    ASSERT_TRUE(buffer.has_value()) << buffer.error().message;
    auto writable = device_->create_segment(Device::kLanes * kBlock, "berth-weights");
    ASSERT_TRUE(writable.has_value());
    std::vector<std::byte> expected(Device::kLanes * kBlock);
    for (int lane = 0; lane < Device::kLanes; ++lane) {
        for (int round = 0; round < kRounds; ++round) {
            auto bytes = pattern_of(kBlock, static_cast<uint64_t>(lane * 100 + round));
            auto index = static_cast<uint64_t>(lane * kRounds + round);
            std::byte* source = buffer->mapping.data() + index * kBlock;
            std::memcpy(source, bytes.data(), kBlock);
            std::byte* target = (*writable)->data() + static_cast<uint64_t>(lane) * kBlock;
            ASSERT_TRUE(device_->start_copy_to_device(lane, target, source, kBlock).has_value());
            std::memcpy(expected.data() + static_cast<uint64_t>(lane) * kBlock, bytes.data(),
                        kBlock);
        }
    }
    for (int lane = 0; lane < Device::kLanes; ++lane)
        ASSERT_TRUE(device_->wait_lane(lane).has_value());
    std::vector<std::byte> copy(expected.size());
    ASSERT_TRUE(device_->copy_to_host(copy.data(), (*writable)->data(), copy.size()).has_value());
    EXPECT_EQ(hash_of(copy), hash_of(expected));
    EXPECT_EQ(device_->wait_lane(Device::kLanes).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(device_->start_copy_to_device(-1, nullptr, nullptr, 0).error().code,
              ErrorCode::kInvalidArgument);
}

// Columns of a wider matrix into columns of another: what lies between the rows stays.
TEST_P(DeviceContract, RowsAreCopiedApartAndNothingBetweenThem) {
    constexpr uint64_t kRows = 37;
    constexpr uint64_t kWidth = 1000;
    constexpr uint64_t kFromPitch = 4096;
    constexpr uint64_t kToPitch = 1536;
    auto source = pattern_of(kRows * kFromPitch, 9);
    auto expected = pattern_of(kRows * kToPitch, 10);
    auto buffer = device_->create_host_buffer(source.size());
    auto scratch = device_->create_device_buffer(expected.size());
    ASSERT_TRUE(buffer.has_value() && scratch.has_value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch->data()) % 256, 0U);
    std::memcpy(buffer->mapping.data(), source.data(), source.size());
    ASSERT_TRUE(
        device_->copy_to_device(scratch->data(), expected.data(), expected.size()).has_value());
    auto copied = device_->start_copy_2d_to_device(
        2, scratch->data() + 8, kToPitch, buffer->mapping.data() + 24, kFromPitch, kWidth, kRows);
    ASSERT_TRUE(copied.has_value()) << copied.error().message;
    ASSERT_TRUE(device_->wait_lane(2).has_value());
    for (uint64_t row = 0; row < kRows; ++row)
        std::memcpy(expected.data() + 8 + row * kToPitch, source.data() + 24 + row * kFromPitch,
                    kWidth);
    std::vector<std::byte> copy(expected.size());
    ASSERT_TRUE(device_->copy_to_host(copy.data(), scratch->data(), copy.size()).has_value());
    EXPECT_EQ(hash_of(copy), hash_of(expected));

    auto overlapping =
        device_->start_copy_2d_to_device(0, scratch->data(), 10, buffer->mapping.data(), 20, 15, 2);
    EXPECT_EQ(overlapping.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(
        device_->start_copy_2d_to_device(0, scratch->data(), 0, buffer->mapping.data(), 0, 15, 1)
            .has_value());
    EXPECT_TRUE(
        device_->start_copy_2d_to_device(0, scratch->data(), 16, buffer->mapping.data(), 16, 15, 0)
            .has_value());
    ASSERT_TRUE(device_->wait_lane(0).has_value());
}

TEST_P(DeviceContract, ScratchMemoryIsGivenBack) {
    EXPECT_EQ(device_->create_device_buffer(0).error().code, ErrorCode::kInvalidArgument);
    for (int round = 0; round < (is_host() ? 20 : 200); ++round) {
        // On a GPU more than it has, were it kept.
        auto scratch = device_->create_device_buffer(is_host() ? 64 * kMiB : 2048 * kMiB);
        ASSERT_TRUE(scratch.has_value()) << scratch.error().message;
        EXPECT_GE(scratch->bytes(), 64 * kMiB);
    }
}

TEST_P(DeviceContract, KernelsAreRefusedWhereTheyCannotRun) {
    std::vector<std::byte> rubbish(64, std::byte{1});
    rubbish.back() = std::byte{0}; // a driver may take it for text
    auto loaded = device_->load_kernels(rubbish);
    ASSERT_FALSE(loaded.has_value());
    if (!device_->capabilities().runs_kernels) {
        EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
        EXPECT_THAT(loaded.error().message, HasSubstr("runs no kernels"));
        EXPECT_EQ(device_->start_kernel(0, {}, 1, 1, {}).error().code, ErrorCode::kUnsupported);
    }
    EXPECT_EQ(is_host(), !device_->capabilities().runs_kernels);
}

TEST(HostSegment, CannotBeWrittenByAnybodyOnceSealed) {
    auto device = open_device("host-0");
    ASSERT_TRUE(device.has_value());
    auto writable = (*device)->create_segment(kMiB, "berth-weights");
    ASSERT_TRUE(writable.has_value());
    auto segment = (*writable)->seal();
    ASSERT_TRUE(segment.has_value());
    EXPECT_EQ(::mmap(nullptr, kMiB, PROT_WRITE, MAP_SHARED, segment->fd.get(), 0), MAP_FAILED);
    // A hostile peer of the same user may reopen it for writing, and gains nothing by it.
    auto reopened = segment->fd.reopen(O_RDWR);
    if (reopened) {
        EXPECT_EQ(::pwrite(reopened->get(), "x", 1, 0), -1);
        EXPECT_EQ(::mmap(nullptr, kMiB, PROT_WRITE, MAP_SHARED, reopened->get(), 0), MAP_FAILED);
        EXPECT_NE(::ftruncate(reopened->get(), 0), 0);
    }
    auto mapping = (*device)->map_read_only(*segment);
    ASSERT_TRUE(mapping.has_value());
    EXPECT_NE(::mprotect(mapping->data(), kMiB, PROT_READ | PROT_WRITE), 0);
}

TEST(HostSegment, UnsealedSegmentIsRefused) {
    auto device = open_device("host-0");
    ASSERT_TRUE(device.has_value());
    UniqueFd fd(::memfd_create("berth-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
    ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK), 0);
    auto mapped = (*device)->map_read_only(Segment{std::move(fd), 4096});
    ASSERT_FALSE(mapped.has_value());
    EXPECT_EQ(mapped.error().reason, "NotSealed");
    UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ((*device)->map_read_only(Segment{std::move(file), 4096}).error().code,
              ErrorCode::kInvalidArgument);
}

TEST(HostSegment, SealingIsRefusedWhileSomethingElseMapsItWritable) {
    auto device = open_device("host-0");
    ASSERT_TRUE(device.has_value());
    auto writable = (*device)->create_segment(kMiB, "berth-weights");
    ASSERT_TRUE(writable.has_value());
    void* second = MAP_FAILED;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        if (std::filesystem::read_symlink(entry.path(), error).string().find("berth-weights") ==
            std::string::npos)
            continue;
        UniqueFd other(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
        second = ::mmap(nullptr, kMiB, PROT_WRITE, MAP_SHARED, other.get(), 0);
    }
    ASSERT_NE(second, MAP_FAILED);
    EXPECT_EQ((*writable)->seal().error().code, ErrorCode::kFailedPrecondition);
    ::munmap(second, kMiB);
    EXPECT_TRUE((*writable)->seal().has_value());
}

TEST(OpenDevice, RefusesWhatIsNoDeviceAndSaysWhatWouldBe) {
    for (const char* id : {"", "host", "host-", "host-x", "gpu-0", "0", "host-123456"}) {
        auto opened = open_device(id);
        ASSERT_FALSE(opened.has_value()) << id;
        EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument) << id;
        EXPECT_THAT(opened.error().message, HasSubstr("host-N"));
    }
    // Neither a GPU nor an instance of that name exists anywhere.
    for (const char* id :
         {"GPU-00000000-0000-0000-0000-000000000000", "MIG-00000000-0000-0000-0000-000000000000"}) {
        auto opened = open_device(id);
        ASSERT_FALSE(opened.has_value());
        EXPECT_TRUE(opened.error().code == ErrorCode::kUnsupported ||
                    opened.error().code == ErrorCode::kNotFound)
            << opened.error().message;
    }
}

TEST(OpenDevice, RefusesAGrantStepThatDoesNotFit) {
    ::setenv("BERTH_GRANT_STEP", "1000", 1);
    auto opened = open_device("host-0");
    ASSERT_FALSE(opened.has_value());
    EXPECT_THAT(opened.error().message, HasSubstr("BERTH_GRANT_STEP"));
    ::setenv("BERTH_GRANT_STEP", "much", 1);
    EXPECT_FALSE(open_device("host-0").has_value());
    ::unsetenv("BERTH_GRANT_STEP");
    EXPECT_TRUE(open_device("host-0").has_value());
}

} // namespace
} // namespace berth
