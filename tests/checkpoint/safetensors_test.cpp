// SPDX-License-Identifier: Apache-2.0
// Goal: a safetensors header is accepted only if it describes its file wholly and without
// contradiction. Method: headers made by hand, one fault each, and the words of the refusal.
#include "cache/checkpoint/safetensors.h"

#include "tests/weights/test_checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::safetensors_file;
using testing::TempFolder;
using testing::write_bytes;

Error refusal(std::string_view header, uint64_t data_bytes) {
    auto parsed = parse_safetensors_header(header, 8 + header.size() + data_bytes, "a.safetensors");
    EXPECT_FALSE(parsed.has_value()) << "accepted: " << header;
    return parsed ? Error{} : parsed.error();
}

TEST(SafetensorsHeader, OrdersTensorsByPlaceAndKeepsTheMetadata) {
    std::string header = R"({"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
        "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
    auto parsed = parse_safetensors_header(header, 8 + header.size() + 16, "a.safetensors");
    ASSERT_TRUE(parsed) << parsed.error().message;
    ASSERT_EQ(parsed->tensors.size(), 2U);
    EXPECT_EQ(parsed->tensors[0].name, "a");
    EXPECT_EQ(parsed->tensors[0].bytes, 4U);
    EXPECT_EQ(parsed->tensors[0].offset, 8 + header.size());
    EXPECT_EQ(parsed->tensors[1].dtype, DType::kBF16);
    EXPECT_EQ(parsed->tensors[1].shape, (std::vector<uint64_t>{2, 3}));
    EXPECT_EQ(parsed->metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, AFileShorterThanItsTensorsIsTruncated) {
    std::string header = R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
    Error error = refusal(header, 12);
    EXPECT_EQ(error.reason, "TruncatedFile");
    uint64_t whole = 8 + header.size() + 16;
    EXPECT_EQ(error.message,
              fmt::format("a.safetensors: tensor 'w': found a file of {} bytes, expected at least "
                          "{}: this tensor ends 4 bytes behind the file's end; the download is "
                          "incomplete: download the file again",
                          whole - 4, whole));
}

TEST(SafetensorsHeader, BytesBehindTheLastTensorAreRefusedUnlessAllowed) {
    std::string header = R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
    Error error = refusal(header, 17);
    EXPECT_EQ(error.reason, "TrailingBytes");
    EXPECT_THAT(error.message, HasSubstr("a.safetensors: found a file of"));
    EXPECT_THAT(error.message, HasSubstr("1 bytes follow the last tensor"));
    SafetensorsOptions options;
    options.allow_trailing = true;
    EXPECT_TRUE(parse_safetensors_header(header, 8 + header.size() + 17, "a", options));
}

TEST(SafetensorsHeader, TensorsThatOverlapAreRefusedByName) {
    Error error = refusal(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
        "b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})",
                          12);
    EXPECT_EQ(error.reason, "OverlappingTensors");
    EXPECT_THAT(error.message, HasSubstr("a.safetensors: tensor 'b': found data offsets that begin "
                                         "at 4, expected 8, where 'a' ends: they overlap"));
}

TEST(SafetensorsHeader, AHoleBetweenTensorsIsRefusedByName) {
    Error error = refusal(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
        "b":{"dtype":"U8","shape":[4],"data_offsets":[12,16]}})",
                          16);
    EXPECT_EQ(error.reason, "HoleInFile");
    EXPECT_THAT(error.message, HasSubstr("tensor 'b': found data offsets that begin at 12"));
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8).reason,
              "HoleInFile");
}

TEST(SafetensorsHeader, AShapeThatDoesNotFillItsBytesIsMisdeclared) {
    Error error = refusal(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,16]}})", 16);
    EXPECT_EQ(error.reason, "ShapeMismatch");
    EXPECT_EQ(error.message, "a.safetensors: tensor 'w': found 16 bytes (data offsets 0..16), "
                             "expected 24 bytes for F32 [2, 3]; the file is damaged: download or "
                             "write it again");
}

TEST(SafetensorsHeader, AShapeWhoseProductOverflowsIsRefused) {
    Error error = refusal(
        R"({"w":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}})", 16);
    EXPECT_EQ(error.reason, "ShapeOverflow");
    EXPECT_THAT(error.message, HasSubstr("tensor 'w'"));
}

TEST(SafetensorsHeader, ATensorThatIsThereTwiceIsRefusedByName) {
    Error error = refusal(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                          8);
    EXPECT_EQ(error.reason, "DuplicateTensor");
    EXPECT_THAT(error.message, HasSubstr("a.safetensors: the key 'w' is there twice"));
    // The same name written in another way is the same name.
    EXPECT_EQ(refusal(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "\u0077":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                      8)
                  .reason,
              "DuplicateTensor");
}

TEST(SafetensorsHeader, Fp4ShapesCountElementsAndAnOddNumberIsRefused) {
    std::string header = R"({"w":{"dtype":"F4","shape":[4,6],"data_offsets":[0,12]}})";
    auto parsed = parse_safetensors_header(header, 8 + header.size() + 12, "a.safetensors");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->tensors[0].bytes, 12U);
    Error error = refusal(R"({"w":{"dtype":"F4","shape":[3,5],"data_offsets":[0,8]}})", 8);
    EXPECT_EQ(error.reason, "OddWidth");
    EXPECT_THAT(error.message, HasSubstr("tensor 'w': found F4 [3, 5], an odd number of elements"));
}

TEST(SafetensorsHeader, Fp8ScalesAreKnownAndUnknownTypesAreOpaque) {
    std::string header = R"({"s":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]},
        "t":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[4,7]}})";
    auto parsed = parse_safetensors_header(header, 8 + header.size() + 7, "a.safetensors");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->tensors[0].dtype, DType::kF8E8M0);
    EXPECT_EQ(parsed->tensors[1].dtype, DType::kOpaque);
    EXPECT_EQ(parsed->tensors[1].dtype_name, "F6_E3M2");
    EXPECT_EQ(parsed->tensors[1].bytes, 3U);
}

TEST(SafetensorsHeader, FieldsOfTheWrongKindAreRefusedByTensor) {
    for (const char* entry :
         {R"({"dtype":"U8","shape":[4]})", R"({"shape":[4],"data_offsets":[0,4]})",
          R"({"dtype":"U8","data_offsets":[0,4]})",
          R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})",
          R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})",
          R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})",
          R"({"dtype":"U8","shape":[4],"data_offsets":[0,4,8]})",
          R"({"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615]})",
          R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"stride":1})", R"([])"}) {
        Error error = refusal(fmt::format(R"({{"the.tensor":{}}})", entry), 4);
        EXPECT_EQ(error.code, ErrorCode::kCorrupt) << entry;
        EXPECT_THAT(error.message, HasSubstr("a.safetensors: tensor 'the.tensor': found")) << entry;
    }
}

TEST(SafetensorsHeader, MetadataOtherThanStringsIsRefused) {
    EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", 0).message,
                HasSubstr("__metadata__ field 'a' as a number, expected a string"));
    EXPECT_EQ(refusal(R"({"__metadata__":[]})", 0).reason, "BadHeader");
}

TEST(SafetensorsFile, AHeaderLongerThanTheFileIsTruncated) {
    TempFolder folder;
    std::string path = folder.file("m.safetensors");
    write_bytes(path, safetensors_file("{}                ", "").substr(0, 20));
    auto read = read_safetensors_header(path, "m.safetensors");
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().reason, "TruncatedFile");
    EXPECT_THAT(read.error().message, HasSubstr("m.safetensors: found a file of 20 bytes"));
    write_bytes(path, "abc");
    EXPECT_EQ(read_safetensors_header(path, "m").error().reason, "TruncatedFile");
}

TEST(SafetensorsFile, AHeaderOverTheCapIsRefusedBeforeItIsRead) {
    TempFolder folder;
    std::string path = folder.file("m.safetensors");
    write_bytes(path, std::string("\xff\xff\xff\xff\x00\x00\x00\x00rest", 12));
    auto read = read_safetensors_header(path, "m.safetensors");
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().message, HasSubstr("a header of 4294967295 bytes"));
}

TEST(SafetensorsFile, AGitLfsPointerIsNamedAsOne) {
    TempFolder folder;
    std::string path = folder.file("m.safetensors");
    write_bytes(path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    auto read = read_safetensors_header(path, "m.safetensors");
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().reason, "NotDownloaded");
    EXPECT_THAT(read.error().message, HasSubstr("git lfs pull"));
}

} // namespace
} // namespace berth
