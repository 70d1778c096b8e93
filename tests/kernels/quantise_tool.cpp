// SPDX-License-Identifier: Apache-2.0
// Reads rows * columns elements from standard input, writes the FP8 bytes and then the scales:
//   berth-quantise BF16|F16|F32 ROWS COLUMNS
#include "cache/weights/quantise.h"

#include <charconv>
#include <cstdio>
#include <string_view>
#include <vector>

namespace {

uint64_t number(std::string_view text) {
    uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4)
        return 2;
    berth::DType dtype = berth::dtype_from(argv[1]);
    uint64_t rows = number(argv[2]);
    uint64_t columns = number(argv[3]);
    uint64_t pitch = columns * berth::bits_of(dtype) / 8;
    std::vector<std::byte> in(rows * pitch);
    if (std::fread(in.data(), 1, in.size(), stdin) != in.size())
        return 2;
    std::vector<std::byte> fp8(rows * columns);
    std::vector<float> scales(berth::scale_count(rows, columns));
    auto done =
        berth::quantise_rows(dtype, in.data(), pitch, rows, columns, fp8.data(), scales.data());
    if (!done) {
        std::fputs(done.error().message.c_str(), stderr);
        return 1;
    }
    if (std::fwrite(fp8.data(), 1, fp8.size(), stdout) != fp8.size() ||
        std::fwrite(scales.data(), sizeof(float), scales.size(), stdout) != scales.size())
        return 1;
    return 0;
}
