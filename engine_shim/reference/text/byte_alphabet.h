// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

// The alphabet of byte-level BPE: each of the 256 bytes has one printable character, so that a
// vocabulary can be written as text. Printable Latin-1 stands for itself, the rest follows from
// U+0100 on.
namespace berth::text {

// Each byte as its character.
std::string to_byte_alphabet(std::string_view bytes);
// The bytes that a token's characters stand for; nullopt when one of them is not of the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view token);

} // namespace berth::text
