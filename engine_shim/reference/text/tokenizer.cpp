// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/tokenizer.h"

#include "base/json.h"
#include "base/unique_fd.h"
#include "engine_shim/reference/text/added_tokens.h"
#include "engine_shim/reference/text/bpe.h"
#include "engine_shim/reference/text/byte_alphabet.h"
#include "engine_shim/reference/text/normalizer.h"
#include "engine_shim/reference/text/post_processor.h"
#include "engine_shim/reference/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::text {
namespace {

constexpr size_t kFileBytesMax = size_t{128} << 20;

json::value field(const json::object& object, boost::json::string_view name) {
    const json::value* found = object.if_contains(name);
    return found == nullptr ? json::value() : *found;
}

} // namespace

struct Tokenizer::Parts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    Bpe bpe;
    AddedTokens added;
    PostProcessor post_processor;

    static Result<Parts> parse(const json::object& document);
    // Appends the ids of text without added tokens that are looked for in the text as given.
    Status encode_plain(std::string text, std::vector<int32_t>& ids) const;
};

Result<Tokenizer::Parts> Tokenizer::Parts::parse(const json::object& document) {
    Parts parts;
    const json::value* model = document.if_contains("model");
    if (model == nullptr)
        return fail(ErrorCode::kInvalidArgument, "field 'model' is missing");
    BERTH_ASSIGN(parts.bpe, Bpe::parse(*model));
    BERTH_ASSIGN(parts.normalizer, Normalizer::parse(field(document, "normalizer")));
    BERTH_ASSIGN(parts.pre_tokenizer, PreTokenizer::parse(field(document, "pre_tokenizer")));
    BERTH_ASSIGN(parts.post_processor, PostProcessor::parse(field(document, "post_processor")));
    BERTH_TRY(check_decoder(field(document, "decoder")));
    BERTH_ASSIGN(parts.added, AddedTokens::parse(document.if_contains("added_tokens"), parts.bpe,
                                                 parts.normalizer));
    return parts;
}

Status Tokenizer::Parts::encode_plain(std::string text, std::vector<int32_t>& ids) const {
    BERTH_ASSIGN(text, normalizer.apply(std::move(text)));
    for (const AddedTokens::Piece& piece : added.split(text, true)) {
        if (piece.id) {
            ids.push_back(*piece.id);
            continue;
        }
        std::string_view part(text);
        part = part.substr(piece.span.begin, piece.span.end - piece.span.begin);
        BERTH_ASSIGN(std::vector<std::string> words, pre_tokenizer.split(part));
        for (const std::string& word : words)
            bpe.encode(word, ids);
    }
    return {};
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
    BERTH_ASSIGN(std::string bytes, read_file(path, kFileBytesMax));
    return parse(bytes, path);
}

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json, std::string_view what) {
    BERTH_ASSIGN(json::value document, json::parse(tokenizer_json, what));
    const json::object* object = document.if_object();
    if (object == nullptr)
        return fail(ErrorCode::kInvalidArgument, fmt::format("{}: expected an object, found {}",
                                                             what, json::kind_name(document)));
    Result<Parts> parts = Parts::parse(*object);
    if (!parts)
        return fail_in(what, std::move(parts).error());
    return Tokenizer(std::make_unique<const Parts>(std::move(*parts)));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               bool add_special_tokens) const {
    std::string valid = to_valid_utf8(text);
    std::vector<int32_t> ids;
    for (const AddedTokens::Piece& piece : parts_->added.split(valid, false)) {
        if (piece.id)
            ids.push_back(*piece.id);
        else
            BERTH_TRY(parts_->encode_plain(
                valid.substr(piece.span.begin, piece.span.end - piece.span.begin), ids));
    }
    return add_special_tokens ? parts_->post_processor.apply(std::move(ids)) : std::move(ids);
}

std::string Tokenizer::token_bytes(int32_t id) const {
    const AddedToken* added = parts_->added.find(id);
    const std::string& token = added != nullptr ? added->content : parts_->bpe.token(id);
    std::optional<std::string> bytes = from_byte_alphabet(token);
    return bytes ? std::move(*bytes) : token;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
    Detokenizer detokenizer(*this, skip_special);
    std::string out;
    for (int32_t id : ids)
        out += detokenizer.push(id);
    return out + detokenizer.finish();
}

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
    const AddedToken* added = parts_->added.find(token);
    return added != nullptr ? std::optional(added->id) : parts_->bpe.find(token);
}

bool Tokenizer::is_special(int32_t id) const {
    const AddedToken* added = parts_->added.find(id);
    return added != nullptr && added->is_special;
}

size_t Tokenizer::size() const {
    const auto& added = parts_->added.all();
    size_t after_added = added.empty() ? 0 : static_cast<size_t>(added.rbegin()->first) + 1;
    return std::max(after_added, parts_->bpe.size());
}

std::string Detokenizer::push(int32_t id) {
    if (skip_special_ && tokenizer_->is_special(id))
        return {};
    return stream_.push(tokenizer_->token_bytes(id));
}

} // namespace berth::text
