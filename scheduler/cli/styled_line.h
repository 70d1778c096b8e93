// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth::cli {

inline constexpr std::string_view kPlain = "";
inline constexpr std::string_view kBold = "\x1b[1m";
inline constexpr std::string_view kDim = "\x1b[2m";
inline constexpr std::string_view kReverse = "\x1b[7m";
inline constexpr std::string_view kGreen = "\x1b[32m";
inline constexpr std::string_view kYellow = "\x1b[33m";
inline constexpr std::string_view kRed = "\x1b[31m";

// The columns that a text takes: its code points, as our own texts go.
inline size_t columns_of(std::string_view text) {
    return static_cast<size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

// The first `columns` of a text; one that is longer ends with "~". Control characters, which would
// move the cursor, become "?".
inline std::string cut(std::string_view text, size_t columns) {
    const bool is_long = columns_of(text) > columns;
    size_t room = is_long && columns > 0 ? columns - 1 : columns;
    std::string kept;
    for (size_t at = 0, next = 0; at < text.size() && room > 0; at = next, --room) {
        next = at + 1;
        while (next < text.size() && (static_cast<uint8_t>(text[next]) & 0xC0) == 0x80)
            ++next;
        const auto first = static_cast<uint8_t>(text[at]);
        if (first < 0x20 || first == 0x7f)
            kept += '?';
        else
            kept += text.substr(at, next - at);
    }
    return is_long && columns > 0 ? kept + "~" : kept;
}

// One line of a screen: pieces of text with a shade each. Never wider than it is told to be.
class StyledLine {
  public:
    explicit StyledLine(size_t width) : width_(width) {}
    StyledLine& add(std::string_view text, std::string_view shade = kPlain) {
        const std::string piece = cut(text, width_ - used_);
        used_ += columns_of(piece);
        pieces_.push_back({piece, shade});
        return *this;
    }
    // Padded to `columns`, cut if it is longer.
    StyledLine& cell(std::string_view text, size_t columns, std::string_view shade = kPlain) {
        std::string piece = cut(text, columns);
        piece.append(columns - columns_of(piece), ' ');
        return add(piece, shade);
    }
    StyledLine& right(std::string_view text, size_t columns, std::string_view shade = kPlain) {
        const std::string piece = cut(text, columns);
        return add(std::string(columns - columns_of(piece), ' ') + piece, shade);
    }
    size_t left() const { return width_ - used_; }
    std::string text(bool colour) const {
        std::string line;
        for (const Piece& piece : pieces_) {
            const bool shaded = colour && !piece.shade.empty() && !piece.text.empty();
            line += shaded ? std::string(piece.shade) + piece.text + "\x1b[0m" : piece.text;
        }
        if (!colour) // no trailing blanks in a text
            line.erase(line.find_last_not_of(' ') + 1);
        return line;
    }

  private:
    struct Piece {
        std::string text;
        std::string_view shade; // of a literal
    };
    size_t width_;
    size_t used_ = 0;
    std::vector<Piece> pieces_;
};

} // namespace berth::cli
