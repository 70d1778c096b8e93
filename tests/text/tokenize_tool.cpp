// SPDX-License-Identifier: Apache-2.0
// berth-tokenize TOKENIZER_JSON: reads lines, each a JSON string or {"hex": "bytes"}, and writes
// for each {"ids": [...], "special": [...], "text": ..., "streamed": ...}: the ids without and with
// special tokens, the text that decoding them gives, and the same text as streaming gives it.
#include "base/json.h"
#include "engine_shim/reference/text/tokenizer.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <iostream>
#include <string>

namespace {

using namespace berth;

Result<std::string> from_hex(const std::string& digits) {
    std::string bytes;
    for (size_t at = 0; at + 1 < digits.size(); at += 2) {
        unsigned value = 0;
        auto [end, error] = std::from_chars(digits.data() + at, digits.data() + at + 2, value, 16);
        if (error != std::errc() || end != digits.data() + at + 2)
            return fail(ErrorCode::kInvalidArgument, "'hex' is not hexadecimal");
        bytes += static_cast<char>(value);
    }
    return bytes;
}

Result<std::string> input_text(const std::string& line) {
    BERTH_ASSIGN(json::value parsed, json::parse(line, "the line"));
    if (const auto* text = parsed.if_string())
        return std::string(text->data(), text->size());
    json::Reader reader(parsed, "the line");
    std::string hex = reader.string("hex");
    BERTH_TRY(reader.finish());
    return from_hex(hex);
}

Result<std::string> answer(const text::Tokenizer& tokenizer, const std::string& line) {
    BERTH_ASSIGN(std::string given, input_text(line));
    BERTH_ASSIGN(std::vector<int32_t> ids, tokenizer.encode(given, false));
    BERTH_ASSIGN(std::vector<int32_t> special, tokenizer.encode(given, true));
    text::Detokenizer detokenizer(tokenizer, false);
    std::string streamed;
    for (int32_t id : ids) {
        std::string piece = detokenizer.push(id);
        if (!text::is_valid_utf8(piece))
            return fail(ErrorCode::kInternal, "a streamed piece is not whole characters");
        streamed += piece;
    }
    streamed += detokenizer.finish();
    json::object out;
    out["ids"] = json::array(ids.begin(), ids.end());
    out["special"] = json::array(special.begin(), special.end());
    out["text"] = tokenizer.decode(ids, false);
    out["plain"] = tokenizer.decode(special, true);
    out["streamed"] = streamed;
    return json::serialize(out);
}

Status run(const std::string& path) {
    BERTH_ASSIGN(text::Tokenizer tokenizer, text::Tokenizer::load(path));
    std::string line;
    while (std::getline(std::cin, line)) {
        BERTH_ASSIGN(std::string out, answer(tokenizer, line));
        std::cout << out << '\n';
    }
    return {};
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: berth-tokenize TOKENIZER_JSON < LINES\n";
        return 2;
    }
    std::ios::sync_with_stdio(false);
    Status status = run(argv[1]);
    if (!status)
        std::cerr << "berth-tokenize: " << status.error().message << '\n';
    return status ? 0 : 1;
}
