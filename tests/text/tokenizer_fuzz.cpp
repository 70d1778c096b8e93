// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tokenizer.json, and any text through a real one: no crash, ids that are known, and
// streaming that gives what decoding at once gives.
#include "engine_shim/reference/text/chat_template.h"
#include "engine_shim/reference/text/tokenizer.h"

#include <cstdint>
#include <cstdlib>

namespace {

using namespace berth;

constexpr std::string_view kModel = R"({"added_tokens":[{"id":6,"content":"<s>","lstrip":true,
"rstrip":true,"special":true}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel"},
"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","unk_token":"a","vocab":{"a":0,"b":1,"c":2,
"ab":3,"bc":4,"abc":5},"merges":["b c","a b","ab c","a bc"]}})";

void check(const text::Tokenizer& tokenizer, std::string_view given) {
    auto ids = tokenizer.encode(given, true);
    if (!ids)
        return;
    text::Detokenizer stream(tokenizer, false);
    std::string streamed;
    for (int32_t id : *ids) {
        std::string piece = stream.push(id);
        if (id < 0 || static_cast<size_t>(id) >= tokenizer.size() || !text::is_valid_utf8(piece))
            std::abort();
        streamed += piece;
    }
    if (streamed + stream.finish() != tokenizer.decode(*ids, false))
        std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const text::Tokenizer tokenizer = *text::Tokenizer::parse(kModel, "model");
    std::string_view given(reinterpret_cast<const char*>(data), size);
    check(tokenizer, given);
    if (auto parsed = text::Tokenizer::parse(given, "the input"))
        check(*parsed, "abc <s> abcab");
    static_cast<void>(text::ChatTemplate::recognise(given, "<s>"));
    return 0;
}
