// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "engine_shim/reference/text/bpe.h"
#include "engine_shim/reference/text/normalizer.h"
#include "engine_shim/reference/text/regex.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace berth::text {

struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool is_special = false;
    bool is_normalized = false; // looked for in normalised text, else in the text as given
    bool is_single_word = false;
    bool strips_left = false;
    bool strips_right = false;
};

// The `added_tokens` of a tokenizer.json: texts that are one token wherever they stand, found
// before anything is split or merged; the longest at each place. Thread-safe after construction.
class AddedTokens {
  public:
    static Result<AddedTokens> parse(const json::value* from, const Bpe& bpe,
                                     const Normalizer& normalizer);

    // A part of the text: a token, or text between tokens (no id).
    struct Piece {
        Span span;
        std::optional<int32_t> id;
    };
    std::vector<Piece> split(std::string_view text, bool is_normalized) const;

    const AddedToken* find(int32_t id) const;
    const AddedToken* find(std::string_view content) const;
    const std::map<int32_t, AddedToken>& all() const { return tokens_; }

  private:
    // A set of texts, for the longest that begins at a place.
    class Trie {
      public:
        Trie() : nodes_(1) {}
        void add(std::string_view text, int32_t id);
        // The token's id and its end; nullopt when none begins there.
        std::optional<std::pair<int32_t, size_t>> longest(std::string_view text, size_t at) const;
        bool empty() const { return nodes_.size() == 1; }

      private:
        struct Node {
            std::map<char, size_t> next;
            std::optional<int32_t> id;
        };
        std::vector<Node> nodes_;
    };

    std::map<int32_t, AddedToken> tokens_;
    std::map<std::string, int32_t, std::less<>> by_content_;
    Trie plain_;
    Trie normalized_;
};

} // namespace berth::text
