// SPDX-License-Identifier: Apache-2.0
// Goal: each element type of safetensors files has its width, and what is not known is carried.
// Method: for each type a header that is right and ones that are off by one element or one byte.
#include "cache/checkpoint/dtype.h"

#include "cache/checkpoint/checkpoint.h"
#include "cache/checkpoint/safetensors.h"
#include "tests/weights/test_checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::make_tensor;
using testing::TestCheckpoint;

struct Known {
    const char* name;
    DType dtype;
    uint32_t bits;
};

class EachType : public ::testing::TestWithParam<Known> {};

Result<SafetensorsHeader> header_of(const char* dtype, const char* shape, uint64_t bytes) {
    std::string header = fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})",
                                     dtype, shape, bytes);
    return parse_safetensors_header(header, 8 + header.size() + bytes, "a.safetensors");
}

TEST_P(EachType, HasItsWidth) {
    const Known& known = GetParam();
    EXPECT_EQ(dtype_from(known.name), known.dtype);
    EXPECT_EQ(to_string(known.dtype), known.name);
    EXPECT_EQ(bits_of(known.dtype), known.bits);
    uint64_t bytes = 6 * known.bits / 8;
    auto parsed = header_of(known.name, "[2,3]", bytes);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->tensors[0].dtype, known.dtype);
    for (uint64_t wrong : {bytes - 1, bytes + 1}) {
        auto refused = header_of(known.name, "[2,3]", wrong);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().reason, "ShapeMismatch");
        EXPECT_THAT(refused.error().message,
                    HasSubstr(fmt::format("expected {} bytes for {} [2, 3]", bytes, known.name)));
    }
}

TEST_P(EachType, MayBeEmptyOrAScalar) {
    const Known& known = GetParam();
    EXPECT_TRUE(header_of(known.name, "[0,3]", 0));
    EXPECT_EQ(static_cast<bool>(header_of(known.name, "[]", known.bits / 8)), known.bits >= 8);
}

TEST_P(EachType, IsCarriedForAModelThatIsNotKnown) {
    TestCheckpoint made;
    made.config["architectures"] = json::array{"SomethingElse"};
    made.tensors = {make_tensor("w", GetParam().name, {4, 2})};
    made.write_single();
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->tensors[0].stored.dtype, GetParam().dtype);
    EXPECT_EQ(opened->data_bytes(), GetParam().bits);
}

TEST_P(EachType, IsAWeightOfAKnownModelOnlyIfItIsAnUnquantisedFloat) {
    TestCheckpoint made;
    made.tensor("model.norm.weight") = make_tensor("model.norm.weight", GetParam().name, {8});
    made.write_single();
    auto opened = open_checkpoint(made.path());
    DType dtype = GetParam().dtype;
    bool fits = dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
                dtype == DType::kBF16;
    ASSERT_EQ(static_cast<bool>(opened), fits);
    if (fits)
        return;
    EXPECT_EQ(opened.error().reason, "WrongType");
    EXPECT_EQ(opened.error().message,
              fmt::format("model.safetensors: tensor 'model.norm.weight': found {}, expected F64, "
                          "F32, F16 or BF16, since config.json names no quantisation; restore "
                          "quantization_config in config.json: download the file again",
                          GetParam().name));
}

INSTANTIATE_TEST_SUITE_P(
    Types, EachType,
    ::testing::Values(Known{"F64", DType::kF64, 64}, Known{"F32", DType::kF32, 32},
                      Known{"F16", DType::kF16, 16}, Known{"BF16", DType::kBF16, 16},
                      Known{"F8_E4M3", DType::kF8E4M3, 8}, Known{"F8_E5M2", DType::kF8E5M2, 8},
                      Known{"F8_E8M0", DType::kF8E8M0, 8}, Known{"F4", DType::kF4, 4},
                      Known{"I64", DType::kI64, 64}, Known{"I32", DType::kI32, 32},
                      Known{"I16", DType::kI16, 16}, Known{"I8", DType::kI8, 8},
                      Known{"U8", DType::kU8, 8}, Known{"BOOL", DType::kBool, 8},
                      Known{"U16", DType::kU16, 16}, Known{"U32", DType::kU32, 32},
                      Known{"U64", DType::kU64, 64}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(UnknownType, IsCarriedAsTheBytesThatItsOffsetsSpan) {
    auto parsed = header_of("F6_E3M2", "[2,3]", 5);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->tensors[0].dtype, DType::kOpaque);
    EXPECT_EQ(parsed->tensors[0].dtype_name, "F6_E3M2");
    EXPECT_EQ(parsed->tensors[0].bytes, 5U);
    EXPECT_EQ(bits_of(DType::kOpaque), 0U);
    EXPECT_EQ(dtype_from("opaque"), DType::kOpaque);
}

TEST(FourBits, ShapesCountElementsAndTwoShareAByte) {
    EXPECT_TRUE(header_of("F4", "[4,6]", 12));
    EXPECT_TRUE(header_of("F4", "[3,2]", 3));
    auto odd = header_of("F4", "[3,5]", 8);
    ASSERT_FALSE(odd);
    EXPECT_EQ(odd.error().reason, "OddWidth");
    EXPECT_THAT(odd.error().message,
                HasSubstr("a.safetensors: tensor 'w': found F4 [3, 5], an odd number of elements"));
    // The shape of the storage, in pairs, is not the tensor's.
    EXPECT_EQ(header_of("F4", "[4,6]", 24).error().reason, "ShapeMismatch");
}

} // namespace
} // namespace berth
