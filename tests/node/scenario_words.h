// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

// How a scenario's words are read.
namespace berth::node::test {

inline uint64_t size_of(const std::string& text) {
    return parse_bytes(text).value();
}
inline Nanoseconds time_of(const std::string& text) {
    return parse_duration(text).value();
}

inline std::string word_after(const std::vector<std::string>& words, const std::string& word,
                              const std::string& fallback) {
    for (size_t i = 0; i + 1 < words.size(); ++i)
        if (words[i] == word)
            return words[i + 1];
    return fallback;
}
inline bool has(const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}
inline std::string at(const std::vector<std::string>& words, size_t index) {
    return index < words.size() ? words[index] : "";
}

// "canary 7,8,9"
inline std::vector<uint64_t> canary_of(const std::vector<std::string>& words) {
    std::vector<uint64_t> tokens;
    std::istringstream list(word_after(words, "canary", ""));
    for (std::string token; std::getline(list, token, ',');)
        tokens.push_back(std::stoull(token));
    return tokens;
}

} // namespace berth::node::test
