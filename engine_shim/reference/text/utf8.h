// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8 as the tokenizer needs it. Broken bytes become U+FFFD, one for each maximal part of a
// sequence that could have become valid: what Python's errors="replace" and the Unicode standard's
// chapter 3.9 do. All functions here are pure.
namespace berth::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// One step of decoding.
struct Utf8Step {
    char32_t code_point = 0xFFFD;
    size_t bytes = 0;        // consumed; 0 only at the end of the text
    bool is_valid = false;   // false: these bytes stand for one U+FFFD
    bool is_cut_off = false; // not valid, but the text ended too early: more bytes could mend it
};

Utf8Step next_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);
// The text with each broken part replaced.
std::string to_valid_utf8(std::string_view text);
void append_utf8(std::string& to, char32_t code_point);
// How many bytes the character has that begins with this byte, in text known to be valid.
size_t utf8_length(char first_byte);

// Text from bytes that arrive in pieces: gives out whole characters only. Not thread-safe.
class Utf8Stream {
  public:
    // The characters that these bytes complete, broken ones replaced.
    std::string push(std::string_view bytes);
    // What is left: nothing, or one U+FFFD for a character that never was completed.
    std::string finish();

  private:
    std::string held_;
};

} // namespace berth::text
