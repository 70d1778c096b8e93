// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/utf8.h"

namespace berth::text {
namespace {

// How a sequence goes on after its first byte: its length, and the range of its second byte (which
// rules out overlong forms, surrogates and what lies above U+10FFFF).
struct Shape {
    size_t bytes;
    uint8_t second_min;
    uint8_t second_max;
};

Shape shape_of(uint8_t first) {
    if (first < 0x80)
        return {1, 0, 0};
    if (first >= 0xC2 && first <= 0xDF)
        return {2, 0x80, 0xBF};
    if (first == 0xE0)
        return {3, 0xA0, 0xBF};
    if (first == 0xED)
        return {3, 0x80, 0x9F};
    if (first >= 0xE1 && first <= 0xEF)
        return {3, 0x80, 0xBF};
    if (first == 0xF0)
        return {4, 0x90, 0xBF};
    if (first >= 0xF1 && first <= 0xF3)
        return {4, 0x80, 0xBF};
    if (first == 0xF4)
        return {4, 0x80, 0x8F};
    return {0, 0, 0};
}

} // namespace

Utf8Step next_utf8(std::string_view text) {
    Utf8Step step;
    if (text.empty())
        return step;
    auto first = static_cast<uint8_t>(text[0]);
    Shape shape = shape_of(first);
    step.bytes = 1;
    if (shape.bytes == 0)
        return step;
    if (shape.bytes == 1) {
        step.code_point = first;
        step.is_valid = true;
        return step;
    }
    auto value = static_cast<char32_t>(first & (0x7FU >> shape.bytes));
    for (size_t at = 1; at < shape.bytes; ++at) {
        if (at == text.size()) {
            step.is_cut_off = true;
            return step;
        }
        auto byte = static_cast<uint8_t>(text[at]);
        uint8_t least = at == 1 ? shape.second_min : uint8_t{0x80};
        uint8_t most = at == 1 ? shape.second_max : uint8_t{0xBF};
        if (byte < least || byte > most)
            return step;
        value = (value << 6U) | (byte & 0x3FU);
        step.bytes = at + 1;
    }
    step.code_point = value;
    step.is_valid = true;
    return step;
}

bool is_valid_utf8(std::string_view text) {
    while (!text.empty()) {
        Utf8Step step = next_utf8(text);
        if (!step.is_valid)
            return false;
        text.remove_prefix(step.bytes);
    }
    return true;
}

std::string to_valid_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        Utf8Step step = next_utf8(text);
        out += step.is_valid ? text.substr(0, step.bytes) : kReplacement;
        text.remove_prefix(step.bytes);
    }
    return out;
}

void append_utf8(std::string& to, char32_t code_point) {
    auto byte = [&](char32_t value) { to += static_cast<char>(static_cast<uint8_t>(value)); };
    if (code_point < 0x80) {
        byte(code_point);
    } else if (code_point < 0x800) {
        byte(0xC0 | (code_point >> 6U));
        byte(0x80 | (code_point & 0x3FU));
    } else if (code_point < 0x10000) {
        byte(0xE0 | (code_point >> 12U));
        byte(0x80 | ((code_point >> 6U) & 0x3FU));
        byte(0x80 | (code_point & 0x3FU));
    } else {
        byte(0xF0 | (code_point >> 18U));
        byte(0x80 | ((code_point >> 12U) & 0x3FU));
        byte(0x80 | ((code_point >> 6U) & 0x3FU));
        byte(0x80 | (code_point & 0x3FU));
    }
}

size_t utf8_length(char first_byte) {
    auto first = static_cast<uint8_t>(first_byte);
    if (first < 0xC0)
        return 1;
    if (first < 0xE0)
        return 2;
    return first < 0xF0 ? 3 : 4;
}

std::string Utf8Stream::push(std::string_view bytes) {
    held_ += bytes;
    std::string out;
    std::string_view rest = held_;
    while (!rest.empty()) {
        Utf8Step step = next_utf8(rest);
        if (step.is_cut_off)
            break;
        out += step.is_valid ? rest.substr(0, step.bytes) : kReplacement;
        rest.remove_prefix(step.bytes);
    }
    held_ = std::string(rest);
    return out;
}

std::string Utf8Stream::finish() {
    std::string out = to_valid_utf8(held_);
    held_.clear();
    return out;
}

} // namespace berth::text
