// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors header, or a well-formed header of any tensors: refused, or a set of
// tensors that lie apart and inside the file, each as long as its shape says.
#include "cache/checkpoint/safetensors.h"

#include "base/json.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>

namespace {

using berth::json::array;
using berth::json::object;

constexpr const char* kTypes[] = {"F64",     "F32",  "F16", "BF16", "F8_E4M3", "F8_E5M2",
                                  "F8_E8M0", "F4",   "I64", "I32",  "I16",     "I8",
                                  "U8",      "BOOL", "U16", "U32",  "U64",     "F6_E3M2"};

// Sizes near the ones where arithmetic breaks, or small.
uint64_t any_size(FuzzedDataProvider& from) {
    return from.ConsumeBool() ? from.ConsumeIntegralInRange<uint64_t>(0, 9)
                              : from.ConsumeIntegral<uint64_t>();
}

// Most tensors follow each other as they should; the input decides where one does not.
std::string any_header(FuzzedDataProvider& from, uint64_t& data_bytes) {
    object header;
    uint64_t at = 0;
    while (from.remaining_bytes() > 2) {
        std::string type = from.PickValueInArray(kTypes);
        uint64_t bits = berth::bits_of(berth::dtype_from(type));
        array shape;
        for (int axis = from.ConsumeIntegralInRange(0, 4); axis > 0; --axis) {
            shape.emplace_back(any_size(from));
            bits *= shape.back().to_number<uint64_t>();
        }
        uint64_t begin = from.ConsumeProbability<float>() < 0.9F ? at : any_size(from);
        uint64_t end = from.ConsumeProbability<float>() < 0.9F ? begin + bits / 8 : any_size(from);
        object entry = {{"dtype", type}, {"shape", shape}, {"data_offsets", array{begin, end}}};
        if (from.ConsumeProbability<float>() > 0.95F)
            entry[from.ConsumeRandomLengthString(8)] = 1;
        header[from.ConsumeRandomLengthString(8)] = entry;
        at = end;
    }
    data_bytes = at < (uint64_t{1} << 62) ? at : 0;
    return berth::json::serialize(header);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FuzzedDataProvider from(data, size);
    uint64_t data_bytes = from.ConsumeIntegral<uint16_t>();
    std::string header =
        from.ConsumeBool() ? from.ConsumeRemainingBytesAsString() : any_header(from, data_bytes);
    uint64_t file_bytes = 8 + header.size() + data_bytes;
    auto parsed = berth::parse_safetensors_header(header, file_bytes, "fuzz.safetensors");
    if (!parsed) {
        if (parsed.error().message.find("fuzz.safetensors") == std::string::npos)
            std::abort();
        return 0;
    }
    uint64_t at = parsed->data_offset;
    for (const berth::StoredTensor& tensor : parsed->tensors) {
        if (tensor.offset != at)
            std::abort();
        at += tensor.bytes;
        unsigned __int128 bits = berth::bits_of(tensor.dtype);
        for (uint64_t axis : tensor.shape)
            bits = axis == 0 ? 0 : bits * axis;
        if (tensor.dtype != berth::DType::kOpaque && tensor.shape.size() <= 4 &&
            static_cast<uint64_t>(bits) != tensor.bytes * 8)
            std::abort();
    }
    if (at != file_bytes)
        std::abort();
    return 0;
}
