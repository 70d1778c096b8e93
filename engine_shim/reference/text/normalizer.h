// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"

#include <functional>
#include <string>
#include <vector>

namespace berth::text {

// The `normalizer` of a tokenizer.json: steps that rewrite text before it is split. Knows NFC, NFD,
// NFKC, NFKD, Lowercase, Replace, Prepend and Sequence; any other is refused by name. Thread-safe
// after construction.
class Normalizer {
  public:
    // `from` is the component, or null for none.
    static Result<Normalizer> parse(const json::value& from);

    // `text` must be valid UTF-8.
    Result<std::string> apply(std::string text) const;
    bool is_identity() const { return steps_.empty(); }

  private:
    using Step = std::function<Result<std::string>(std::string)>;
    Status add(const json::value& from);
    std::vector<Step> steps_;
};

} // namespace berth::text
