// SPDX-License-Identifier: Apache-2.0
// Goal: verify() names the tensors whose bytes changed, wherever the bit is and however the device
// is read. Method: a segment of many odd tensors with their manifest, one bit flipped at a time.
#include "cache/load/verify.h"

#include "tests/kernels/copy_only_device.h"
#include "tests/kernels/reference.h"

#include <gmock/gmock.h>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Big, small, short, empty; each at a multiple of kTensorAlignment.
constexpr uint64_t kSizes[] = {1'000'000, 0, 5, 65536, 240, 3 * 65536 + 100, 77, 2'500'000};

struct Set {
    std::vector<std::byte> bytes;
    ManifestParts parts;
};

Set make_set() {
    Set made;
    for (size_t index = 0; index < std::size(kSizes); ++index) {
        ManifestEntry entry;
        entry.name = "tensor." + std::to_string(index);
        entry.dtype = DType::kU8;
        entry.shape = {kSizes[index]};
        entry.offset = made.bytes.size();
        entry.bytes = kSizes[index];
        made.bytes.resize(made.bytes.size() + (kSizes[index] + kTensorAlignment - 1) /
                                                  kTensorAlignment * kTensorAlignment);
        made.parts.entries.push_back(std::move(entry));
    }
    test::Random random;
    for (std::byte& byte : made.bytes)
        byte = static_cast<std::byte>(random.next() >> 56);
    for (ManifestEntry& entry : made.parts.entries)
        entry.checksum = checksum_of(std::span(made.bytes).subspan(entry.offset, entry.bytes));
    ManifestEntry alias = made.parts.entries.front();
    alias.name = "alias";
    alias.alias_of = "tensor.0";
    made.parts.entries.push_back(alias);
    made.parts.segment_bytes = {(made.bytes.size() + 4095) / 4096 * 4096};
    made.parts.fingerprint_json = "{}";
    made.parts.fingerprint = std::string(64, '0');
    made.parts.config_json = "{}";
    return made;
}

std::vector<std::string> verified(Device& device, const Set& set) {
    auto fd = write_manifest(set.parts);
    EXPECT_TRUE(fd) << (fd ? "" : fd.error().message);
    auto manifest = Manifest::open(*fd, set.parts.segment_bytes);
    EXPECT_TRUE(manifest) << (manifest ? "" : manifest.error().message);
    auto writable = device.create_segment(set.bytes.size(), "berth-weights").value();
    EXPECT_TRUE(device.copy_to_device(writable->data(), set.bytes.data(), set.bytes.size()));
    Segment sealed = writable->seal().value();
    Mapping mapping = device.map_read_only(sealed).value();
    auto different = verify(device, *manifest, std::span(&mapping, 1));
    EXPECT_TRUE(different) << (different ? "" : different.error().message);
    return different.value_or(std::vector<std::string>{"verify failed"});
}

void expect_flips_found(Device& device) {
    Set set = make_set();
    EXPECT_THAT(verified(device, set), IsEmpty());
    for (const ManifestEntry& entry : std::vector(set.parts.entries)) {
        if (entry.bytes == 0 || !entry.alias_of.empty())
            continue;
        for (uint64_t at : {uint64_t{0}, entry.bytes / 2, entry.bytes - 1}) {
            std::byte& there = set.bytes[entry.offset + at];
            there ^= std::byte{0x08};
            EXPECT_THAT(verified(device, set), ElementsAre(entry.name)) << "byte " << at;
            there ^= std::byte{0x08};
        }
    }
    set.bytes[0] ^= std::byte{1};
    set.bytes.back() ^= std::byte{1}; // behind the last tensor's end: nobody's
    EXPECT_THAT(verified(device, set), ElementsAre("tensor.0"));
}

TEST(Verify, FindsAFlippedBitByNameInPlace) {
    auto device = open_device("host-0").value();
    expect_flips_found(*device);
}

TEST(Verify, FindsAFlippedBitByNameThroughCopies) {
    test::CopyOnlyDevice device;
    expect_flips_found(device);
}

TEST(Verify, FindsAFlippedBitByNameOnAGpu) {
    auto device = open_device("cuda");
    if (!device && device.error().code == ErrorCode::kUnsupported)
        GTEST_SKIP() << device.error().message;
    ASSERT_TRUE(device) << device.error().message;
    Set set = make_set();
    uint64_t step = (*device)->capabilities().granularity_bytes;
    set.parts.segment_bytes = {(set.bytes.size() + step - 1) / step * step};
    EXPECT_THAT(verified(**device, set), IsEmpty());
    set.bytes[set.parts.entries[5].offset + 2 * 65536 + 9] ^= std::byte{0x80};
    EXPECT_THAT(verified(**device, set), ElementsAre("tensor.5"));
}

} // namespace
} // namespace berth
