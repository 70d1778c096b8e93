// SPDX-License-Identifier: Apache-2.0
// Goal: an image gives back the set that it was made of, or is refused by name; whatever interrupts
// its writing leaves what was there before. Method: sets of small checkpoints, sliced and
// quantised, on the host device and on one that behaves like a GPU; images are damaged byte by
// byte.
#include "cache/load/image.h"

#include "cache/load/image_format.h"
#include "tests/weights/late_copy_device.h"
#include "tests/weights/test_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::LateCopyDevice;
using testing::read_bytes;
using testing::TempFolder;
using testing::TestCheckpoint;
using testing::write_bytes;
namespace fs = std::filesystem;

// A device of either kind, as a set on it is made for.
struct Place {
    std::unique_ptr<Device> device;
    WeightEnvironment environment;
    static Place of(bool late) {
        Place place{open_device("host-0").value(), {"host", "", "", "any"}};
        if (late)
            place = {std::make_unique<LateCopyDevice>(), {"cuda", "", "", "any"}};
        return place;
    }
};

// Several tiles, pieces and checksum blocks, the last of each odd.
void make_large(TestCheckpoint& made, uint64_t vocabulary = 312'345) {
    made.config["vocab_size"] = vocabulary;
    made.fill("F32");
}

LoadedSet loaded(const TestCheckpoint& made, Place& place, WeightRecipe recipe = {}) {
    LoadRequest request;
    request.path = made.path();
    request.recipe = std::move(recipe);
    request.environment = place.environment;
    auto plan = plan_load(request);
    EXPECT_TRUE(plan) << plan.error().message;
    auto set = run_load(*plan, *place.device, 2, {});
    EXPECT_TRUE(set) << set.error().message;
    return std::move(*set);
}

std::string bytes_of(const UniqueFd& fd) {
    std::string bytes(fs::file_size("/proc/self/fd/" + std::to_string(fd.get())), '\0');
    EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return bytes;
}

void expect_same(Device& device, const LoadedSet& set, const LoadedSet& other) {
    EXPECT_TRUE(bytes_of(set.manifest) == bytes_of(other.manifest));
    ASSERT_EQ(set.segment_bytes(), other.segment_bytes());
    for (size_t index = 0; index < set.segments.size(); ++index) {
        auto first = device.map_read_only(set.segments[index]).value();
        auto second = device.map_read_only(other.segments[index]).value();
        EXPECT_EQ(std::memcmp(first.data(), second.data(), first.bytes()), 0) << index;
    }
}

// An image of a small model, and what it should be.
class ImageTest : public ::testing::Test {
  protected:
    ImageTest() {
        made_.write_single();
        LoadedSet set = loaded(made_, place_);
        fingerprint_ = Manifest::open(set.manifest, set.segment_bytes()).value().fingerprint();
        Status written = write_image(path_, view_of(set), *place_.device, 2, {});
        EXPECT_TRUE(written) << written.error().message;
        whole_ = read_bytes(path_);
    }

    Result<LoadedSet> load(const ImageWanted& wanted = {}) {
        return run_image_load(path_, wanted, *place_.device, 2, {}, {});
    }
    image_format::Header header() const {
        image_format::Header header{};
        std::memcpy(&header, whole_.data(), sizeof header);
        return header;
    }
    // The header with another field, as a writer would have made it.
    void write_header(image_format::Header header) {
        std::string bytes = whole_;
        header.header_checksum_low = header.header_checksum_high = 0;
        std::memcpy(bytes.data(), &header, sizeof header);
        Checksum sum = checksum_of(
            std::as_bytes(std::span(bytes).first(static_cast<size_t>(header.header_bytes))));
        header.header_checksum_low = sum.low;
        header.header_checksum_high = sum.high;
        std::memcpy(bytes.data(), &header, sizeof header);
        write_bytes(path_, bytes);
    }
    void expect_refused(const Result<LoadedSet>& result, std::string_view reason,
                        const std::string& words) {
        ASSERT_FALSE(result) << reason;
        EXPECT_EQ(result.error().reason, reason) << result.error().message;
        EXPECT_THAT(result.error().message, HasSubstr(path_));
        EXPECT_THAT(result.error().message, HasSubstr(words));
        EXPECT_THAT(result.error().message, HasSubstr("expected"));
    }

    TestCheckpoint made_;
    TempFolder folder_;
    Place place_ = Place::of(false);
    std::string path_ = folder_.file("set.image");
    std::string fingerprint_;
    std::string whole_;
};

TEST(Image, GivesTheSetBackOnBothWaysSlicedAndQuantised) {
    TestCheckpoint made("LlamaForCausalLM");
    made.config["hidden_size"] = 256;
    made.config["intermediate_size"] = 1024;
    made.config["num_attention_heads"] = 8;
    made.config["num_key_value_heads"] = 2;
    made.config["head_dim"] = 128;
    make_large(made, 18'346);
    made.write_sharded(2);
    WeightRecipe sliced{{.tensor = 2}, 1, "fp8-block", "auto"};
    for (bool late : {false, true})
        for (const WeightRecipe& recipe : {WeightRecipe{}, sliced}) {
            Place place = Place::of(late);
            TempFolder folder;
            std::string path = folder.file("a");
            LoadedSet set = loaded(made, place, recipe);
            uint64_t most = 0;
            Status written = write_image(path, view_of(set), *place.device, 3,
                                         [&](uint64_t done, uint64_t total) {
                                             most = total;
                                             EXPECT_LE(done, total);
                                             return Status();
                                         });
            ASSERT_TRUE(written) << written.error().message;
            EXPECT_EQ(most, set.segments[0].bytes);
            EXPECT_EQ(fs::file_size(path) % 4096, 0U);
            for (ReadMethod method : {ReadMethod::kAuto, ReadMethod::kBuffered}) {
                auto again = run_image_load(path, {}, *place.device, 3, {method}, {});
                ASSERT_TRUE(again) << again.error().message;
                expect_same(*place.device, set, *again);
                EXPECT_EQ(again->bytes_read, set.segments[0].bytes);
            }
            EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
        }
}

TEST_F(ImageTest, IsWhatWasWantedOrRefused) {
    EXPECT_TRUE(load({fingerprint_}));
    EXPECT_TRUE(load());
    expect_refused(load({std::string(64, '0')}), "FingerprintMismatch", fingerprint_);
    expect_refused(load({fingerprint_, "berth-2"}), "LayoutMismatch", "layout 'berth-1'");
}

TEST_F(ImageTest, OfAnotherLengthIsRefusedBeforeAByteMoves) {
    for (uint64_t bytes : {uint64_t{0}, uint64_t{7}, uint64_t{100}, uint64_t{4095}, uint64_t{4096},
                           header().manifest_at + 10, header().file_bytes - 1}) {
        write_bytes(path_, std::string_view(whole_).substr(0, bytes));
        expect_refused(load(), "TruncatedImage", "delete the image and write it again");
    }
    write_bytes(path_, whole_ + "x");
    expect_refused(load(), "TrailingBytes", std::to_string(whole_.size() + 1) + " bytes");
}

TEST_F(ImageTest, OfAnotherFormatOrOfNoneIsRefused) {
    image_format::Header other = header();
    other.version = 2;
    write_header(other);
    expect_refused(load(), "ImageVersion", "format 2");
    other = header();
    other.magic = 1;
    write_header(other);
    expect_refused(load(), "NoImage", "magic number");
    fs::remove(path_);
    EXPECT_THAT(load().error().message, HasSubstr("No such file"));
}

TEST_F(ImageTest, ForAnotherDeviceIsRefused) {
    Place late = Place::of(true);
    expect_refused(run_image_load(path_, {}, *late.device, 1, {}, {}), "EnvironmentMismatch",
                   "devices of kind 'host'");
    late.environment.compute_capability = "9.0";
    LoadedSet set = loaded(made_, late);
    ASSERT_TRUE(write_image(path_, view_of(set), *late.device, 1, {}));
    expect_refused(run_image_load(path_, {}, *late.device, 1, {}, {}), "EnvironmentMismatch",
                   "compute capability '9.0'");
}

TEST_F(ImageTest, AnyChangedByteOfHeaderOrManifestIsFound) {
    auto front = static_cast<size_t>(header().manifest_at + header().manifest_bytes);
    for (size_t at = 0; at < front; at += at < 400 ? 1 : 37) {
        std::string damaged = whole_;
        damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
        write_bytes(path_, damaged);
        auto refused = open_image(path_);
        ASSERT_FALSE(refused) << "byte " << at;
        EXPECT_THAT(refused.error().message, HasSubstr(path_)) << at;
    }
}

TEST_F(ImageTest, AByteBetweenItsPartsIsRefusedWithItsOffset) {
    size_t begin = header().manifest_at + header().manifest_bytes;
    size_t end = (begin + 4095) / 4096 * 4096;
    ASSERT_LT(begin, end) << "this manifest fills its pages";
    for (size_t at : {begin, (begin + end) / 2, end - 1}) {
        std::string damaged = whole_;
        damaged[at] = 0x21;
        write_bytes(path_, damaged);
        expect_refused(load(), "CorruptImage", "byte 0x21 at offset " + std::to_string(at));
    }
    write_bytes(path_, whole_);
    EXPECT_TRUE(load());
}

TEST_F(ImageTest, IsKnownByHowItBegins) {
    EXPECT_TRUE(begins_as_image(path_));
    write_bytes(path_, std::string(4096, '\0'));
    EXPECT_FALSE(begins_as_image(path_));
    write_bytes(path_, whole_.substr(0, 7));
    EXPECT_FALSE(begins_as_image(path_));
    EXPECT_FALSE(begins_as_image(folder_.path()));
    EXPECT_FALSE(begins_as_image(folder_.file("none")));
}

TEST_F(ImageTest, ATableThatPointsElsewhereIsRefusedThoughItsChecksumIsRight) {
    for (uint64_t image_format::Header::* field :
         {&image_format::Header::manifest_at, &image_format::Header::file_bytes,
          &image_format::Header::manifest_bytes}) {
        image_format::Header other = header();
        other.*field += uint64_t{1} << 40;
        write_header(other);
        expect_refused(load(), "CorruptImage", "one behind the other");
        other.*field = header().*field - 1;
        write_header(other);
        EXPECT_FALSE(load());
    }
    image_format::Header other = header();
    other.fingerprint[3] = 'z';
    write_header(other);
    expect_refused(load(), "CorruptImage", "fingerprint");
}

TEST_F(ImageTest, AFlippedBitIsFoundByItsTensorsNameOnBothWays) {
    for (bool late : {false, true}) {
        Place place = Place::of(late);
        LoadedSet set = loaded(made_, place);
        ASSERT_TRUE(write_image(path_, view_of(set), *place.device, 1, {}));
        Image image = open_image(path_).value();
        Manifest manifest = Manifest::open(image.manifest, image.segment_bytes()).value();
        const std::string whole = read_bytes(path_);
        for (const char* name : {"model.layers.1.mlp.up_proj.weight", "model.norm.weight"}) {
            TensorView view = manifest.at(static_cast<size_t>(manifest.find(name)));
            std::string damaged = whole;
            size_t at = image.segments[0].offset + view.offset + view.bytes - 1;
            damaged[at] = static_cast<char>(damaged[at] ^ 1);
            write_bytes(path_, damaged);
            auto refused = run_image_load(path_, {}, *place.device, 2, {}, {});
            expect_refused(refused, "ChecksumMismatch", "tensor '" + std::string(name) + "'");
        }
    }
}

TEST_F(ImageTest, AChangeBetweenCheckAndReadingIsRefused) {
    Image image = open_image(path_).value();
    testing::touch_later(path_);
    auto refused = run_image_load(image, *place_.device, 1, {}, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, "FileChanged");
}

TEST_F(ImageTest, AWritingThatIsInterruptedLeavesWhatWasThere) {
    TestCheckpoint large;
    make_large(large);
    large.write_single();
    for (bool late : {false, true}) {
        Place place = Place::of(late);
        LoadedSet set = loaded(large, place);
        auto stop = [](uint64_t, uint64_t) -> Status {
            return fail(ErrorCode::kUnavailable, "stopped");
        };
        for (const std::string& path : {path_, folder_.file("new")}) {
            Status written = write_image(path, view_of(set), *place.device, 2, stop);
            ASSERT_FALSE(written);
            EXPECT_EQ(written.error().message, "stopped");
        }
        EXPECT_TRUE(read_bytes(path_) == whole_);
        EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1) << "nothing else";
    }
}

TEST_F(ImageTest, ASetThatIsNotItsChecksumsIsNotWritten) {
    // A sealed segment cannot be changed, so one with other bytes stands in.
    LoadedSet set = loaded(made_, place_);
    auto other = place_.device->create_segment(set.segments[0].bytes, "berth-weights").value();
    std::memset(other->data(), 0x11, other->bytes());
    Segment sealed[] = {other->seal().value()};
    Status written =
        write_image(folder_.file("new"), {set.manifest, sealed}, *place_.device, 1, {});
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().reason, "ChecksumMismatch");
    EXPECT_FALSE(fs::exists(folder_.file("new")));
}

TEST_F(ImageTest, AFolderThatIsNotThereIsNamed) {
    LoadedSet set = loaded(made_, place_);
    Status written = write_image(folder_.file("none/image"), view_of(set), *place_.device, 1, {});
    ASSERT_FALSE(written);
    EXPECT_THAT(written.error().message, HasSubstr("none/image"));
}

} // namespace
} // namespace berth
