// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/text/utf8.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace berth::text {

// Byte-level BPE from a Hugging Face tokenizer.json; gives the ids that the `tokenizers` package
// gives. A component that it does not know is an error that names it, never a guess. `truncation`
// and `padding` are the caller's affair and are not read. Thread-safe after construction, nothing
// blocks; encoding takes a few microseconds a word.
class Tokenizer {
  public:
    static Result<Tokenizer> load(const std::string& path);
    // `what` names the document in errors.
    static Result<Tokenizer> parse(std::string_view tokenizer_json, std::string_view what);

    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    // Text that is not valid UTF-8 has its broken parts replaced by U+FFFD first. With
    // `add_special_tokens`, what the post_processor's template puts around one sequence is added.
    // ResourceExhausted when a pattern runs out of its match limit (text of many megabytes).
    Result<std::vector<int32_t>> encode(std::string_view text, bool add_special_tokens) const;

    // Ids without a token are left out. Broken UTF-8 becomes U+FFFD.
    std::string decode(std::span<const int32_t> ids, bool skip_special) const;
    // The bytes that a token stands for: not always whole characters. Empty for an unknown id.
    std::string token_bytes(int32_t id) const;

    std::optional<int32_t> find(std::string_view token) const;
    bool is_special(int32_t id) const;
    // One more than the greatest id that has a token.
    size_t size() const;

  private:
    struct Parts;
    explicit Tokenizer(std::unique_ptr<const Parts> parts);
    std::unique_ptr<const Parts> parts_;
};

// Text from tokens as they are generated: the pieces, put together, are what decode() gives for all
// of them at once, and no piece ends within a character. Not thread-safe; the tokenizer outlives
// it.
class Detokenizer {
  public:
    Detokenizer(const Tokenizer& tokenizer, bool skip_special)
        : tokenizer_(&tokenizer), skip_special_(skip_special) {}

    std::string push(int32_t id);
    // What was held back for want of its last bytes.
    std::string finish() { return stream_.finish(); }

  private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    Utf8Stream stream_;
};

} // namespace berth::text
