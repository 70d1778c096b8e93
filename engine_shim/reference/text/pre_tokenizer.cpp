// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/pre_tokenizer.h"

#include "engine_shim/reference/text/byte_alphabet.h"
#include "engine_shim/reference/text/component.h"
#include "engine_shim/reference/text/split.h"

#include <memory>

namespace berth::text {
namespace {

constexpr std::string_view kRole = "pre_tokenizer";

// How GPT-2 splits text, and every ByteLevel with use_regex: English contractions, words, numbers,
// other runs (each with at most one space before it), and what is left of white space.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using Pieces = std::vector<std::string>;
using SharedRegex = std::shared_ptr<const Regex>;

Result<Pieces> split_all(const Pieces& pieces, const Regex& pattern, SplitBehavior behavior,
                         bool invert) {
    Pieces out;
    for (const std::string& piece : pieces) {
        BERTH_ASSIGN(std::vector<Span> found, pattern.find_all(piece));
        std::vector<Part> parts = parts_of(piece.size(), found);
        if (invert) {
            for (Part& part : parts)
                part.is_delimiter = !part.is_delimiter;
        }
        append_pieces(piece, parts, behavior, out);
    }
    return out;
}

Pieces split_digits(const Pieces& pieces, SplitBehavior behavior) {
    Pieces out;
    for (const std::string& piece : pieces)
        append_pieces(piece, parts_of(piece.size(), find_digits(piece)), behavior, out);
    return out;
}

Result<Pieces> byte_level(Pieces pieces, bool adds_prefix_space, const SharedRegex& pattern) {
    if (adds_prefix_space) {
        for (std::string& piece : pieces) {
            if (!piece.starts_with(' '))
                piece.insert(piece.begin(), ' ');
        }
    }
    if (pattern != nullptr) {
        BERTH_ASSIGN(pieces, split_all(pieces, *pattern, SplitBehavior::kIsolated, false));
    }
    for (std::string& piece : pieces)
        piece = to_byte_alphabet(piece);
    return pieces;
}

} // namespace

Result<PreTokenizer> PreTokenizer::parse(const json::value& from) {
    PreTokenizer parsed;
    if (!from.is_null())
        BERTH_TRY(parsed.add(from));
    if (!parsed.is_byte_level_)
        return fail(ErrorCode::kUnsupported,
                    "pre_tokenizer: expected a ByteLevel, alone or last of a Sequence, found " +
                        (from.is_null() ? std::string("none") : json::serialize(from)) +
                        "; only byte-level BPE is supported");
    return parsed;
}

Status PreTokenizer::add(const json::value& from) {
    BERTH_ASSIGN(std::string type, component_type(from, kRole));
    if (type == "Sequence") {
        BERTH_ASSIGN(const json::array* list, component_list(from, "pretokenizers", kRole));
        for (const json::value& step : *list)
            BERTH_TRY(add(step));
        return {};
    }
    // Behind ByteLevel the text is in the byte alphabet, where patterns mean something else.
    if (is_byte_level_)
        return fail(ErrorCode::kUnsupported,
                    "pre_tokenizer '" + type + "' behind ByteLevel is not supported");
    if (type == "ByteLevel")
        return add_byte_level(from);
    if (type == "Split")
        return add_split(from);
    if (type == "Digits") {
        json::Reader reader(from, "pre_tokenizer 'Digits'");
        bool individual = reader.allow_unknown().boolean("individual_digits", false);
        SplitBehavior behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
        steps_.emplace_back([behavior](const Pieces& pieces) -> Result<Pieces> {
            return split_digits(pieces, behavior);
        });
        return reader.finish();
    }
    return unknown_component(kRole, type, "ByteLevel, Split, Digits, Sequence");
}

Status PreTokenizer::add_byte_level(const json::value& from) {
    json::Reader reader(from, "pre_tokenizer 'ByteLevel'");
    reader.allow_unknown();
    bool adds_prefix_space = reader.boolean("add_prefix_space", true);
    SharedRegex pattern;
    if (reader.boolean("use_regex", true)) {
        BERTH_ASSIGN(Regex compiled, Regex::compile(kByteLevelPattern));
        pattern = std::make_shared<const Regex>(std::move(compiled));
    }
    steps_.emplace_back([adds_prefix_space, pattern](Pieces pieces) {
        return byte_level(std::move(pieces), adds_prefix_space, pattern);
    });
    is_byte_level_ = true;
    return reader.finish();
}

Status PreTokenizer::add_split(const json::value& from) {
    json::Reader reader(from, "pre_tokenizer 'Split'");
    reader.allow_unknown();
    const json::value* given = reader.any("pattern");
    std::string behavior_name = reader.string("behavior");
    bool invert = reader.boolean("invert", false);
    BERTH_TRY(reader.finish());
    BERTH_ASSIGN(SplitBehavior behavior, split_behavior(behavior_name));
    BERTH_ASSIGN(Regex compiled,
                 component_pattern(given == nullptr ? json::value() : *given, kRole));
    auto pattern = std::make_shared<const Regex>(std::move(compiled));
    steps_.emplace_back([pattern, behavior, invert](const Pieces& pieces) {
        return split_all(pieces, *pattern, behavior, invert);
    });
    return {};
}

Result<std::vector<std::string>> PreTokenizer::split(std::string_view text) const {
    Pieces pieces;
    if (!text.empty())
        pieces.emplace_back(text);
    for (const Step& step : steps_) {
        BERTH_ASSIGN(pieces, step(std::move(pieces)));
    }
    return pieces;
}

} // namespace berth::text
