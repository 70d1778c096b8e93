// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/byte_alphabet.h"

#include "engine_shim/reference/text/utf8.h"

#include <array>

namespace berth::text {
namespace {

constexpr size_t kBytes = 256;
// The greatest code point in use is U+0143.
constexpr size_t kCodePoints = 0x144;

struct Alphabet {
    std::array<std::string, kBytes> character;
    std::array<int, kCodePoints> byte{};

    Alphabet() {
        byte.fill(-1);
        char32_t next = 0x100;
        for (size_t at = 0; at < kBytes; ++at) {
            bool is_printable = (at >= 0x21 && at <= 0x7E) || (at >= 0xA1 && at <= 0xAC) ||
                                (at >= 0xAE && at <= 0xFF);
            char32_t code_point = is_printable ? static_cast<char32_t>(at) : next++;
            append_utf8(character[at], code_point);
            byte[code_point] = static_cast<int>(at);
        }
    }
};

const Alphabet& alphabet() {
    static const Alphabet instance;
    return instance;
}

} // namespace

std::string to_byte_alphabet(std::string_view bytes) {
    const Alphabet& table = alphabet();
    std::string out;
    out.reserve(bytes.size() * 2);
    for (char byte : bytes)
        out += table.character[static_cast<uint8_t>(byte)];
    return out;
}

std::optional<std::string> from_byte_alphabet(std::string_view token) {
    const Alphabet& table = alphabet();
    std::string out;
    out.reserve(token.size());
    while (!token.empty()) {
        Utf8Step step = next_utf8(token);
        if (!step.is_valid || step.code_point >= kCodePoints || table.byte[step.code_point] < 0)
            return std::nullopt;
        out += static_cast<char>(static_cast<uint8_t>(table.byte[step.code_point]));
        token.remove_prefix(step.bytes);
    }
    return out;
}

} // namespace berth::text
