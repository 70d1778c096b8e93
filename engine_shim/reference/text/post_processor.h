// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"

#include <cstdint>
#include <vector>

namespace berth::text {

// The `post_processor` of a tokenizer.json: what special tokens go around one sequence. Knows
// ByteLevel (which changes offsets only), TemplateProcessing and Sequence; any other is refused by
// name. Thread-safe after construction.
class PostProcessor {
  public:
    static Result<PostProcessor> parse(const json::value& from);

    std::vector<int32_t> apply(std::vector<int32_t> ids) const;

  private:
    Status add(const json::value& from);
    Status add_template(const json::value& from);

    std::vector<int32_t> before_;
    std::vector<int32_t> after_;
};

// The `decoder`: checks that it is ByteLevel, alone or in a Sequence with Fuse.
Status check_decoder(const json::value& from);

} // namespace berth::text
