// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace berth::text {

// The `pre_tokenizer` of a tokenizer.json: splits text into the words within which merges happen.
// Knows ByteLevel, Split, Digits and Sequence; any other is refused by name. A tokenizer without
// ByteLevel in it is refused too: only there is every byte of every text a token.
// Thread-safe after construction.
class PreTokenizer {
  public:
    static Result<PreTokenizer> parse(const json::value& from);

    // The words of a text that is valid UTF-8, in the byte alphabet.
    Result<std::vector<std::string>> split(std::string_view text) const;

  private:
    using Pieces = std::vector<std::string>;
    using Step = std::function<Result<Pieces>(Pieces)>;
    Status add(const json::value& from);
    Status add_byte_level(const json::value& from);
    Status add_split(const json::value& from);

    std::vector<Step> steps_;
    bool is_byte_level_ = false;
};

} // namespace berth::text
