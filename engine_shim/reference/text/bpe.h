// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace berth::text {

// The `model` of a tokenizer.json, of type BPE: a vocabulary and an ordered list of merges. Options
// that byte-level tokenizers do not use (dropout, byte_fallback, affixes) are refused by name.
// Thread-safe after construction.
class Bpe {
  public:
    static Result<Bpe> parse(const json::value& from);

    // Appends the tokens of one word, which is in the byte alphabet.
    void encode(std::string_view word, std::vector<int32_t>& ids) const;

    std::optional<int32_t> find(std::string_view token) const;
    // Empty for ids that have no token.
    const std::string& token(int32_t id) const;
    // One more than the greatest id.
    size_t size() const { return tokens_.size(); }

  private:
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const {
            return std::hash<std::string_view>()(text);
        }
    };
    struct Merge {
        uint32_t rank = 0;
        int32_t id = 0;
    };

    Status read_options(const json::value& from);
    Status read_vocabulary(const json::value& from);
    Status read_merges(const json::value& from);
    Status add_merge(uint32_t rank, std::string_view left, std::string_view right);
    std::vector<int32_t> characters_of(std::string_view word) const;
    const Merge* find_merge(int32_t left, int32_t right) const;
    void merge(const std::vector<int32_t>& characters, std::vector<int32_t>& ids) const;

    std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
    std::vector<std::string> tokens_;
    std::unordered_map<uint64_t, Merge> merges_;
    std::optional<int32_t> unknown_;
    bool fuses_unknown_ = false;
    bool ignores_merges_ = false;
};

} // namespace berth::text
