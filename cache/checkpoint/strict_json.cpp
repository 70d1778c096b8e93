// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/strict_json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace berth {

namespace {

// Sees every key as the parser goes and stops at the first that its object has already.
struct KeyWatcher {
    using string_view = boost::json::string_view;
    using error_code = boost::json::error_code;
    static constexpr size_t max_object_size = static_cast<size_t>(-1);
    static constexpr size_t max_array_size = static_cast<size_t>(-1);
    static constexpr size_t max_key_size = size_t{1} << 20;
    static constexpr size_t max_string_size = static_cast<size_t>(-1);

    std::vector<std::unordered_set<std::string>> open;
    std::string key;
    bool twice = false;

    bool on_key_part(string_view part, size_t, error_code&) {
        key.append(part.data(), part.size());
        return true;
    }
    bool on_key(string_view part, size_t, error_code& error) {
        key.append(part.data(), part.size());
        if (!open.back().insert(key).second) {
            twice = true;
            error = boost::json::make_error_code(boost::json::error::syntax);
            return false;
        }
        key.clear();
        return true;
    }
    bool on_object_begin(error_code&) {
        open.emplace_back();
        return true;
    }
    bool on_object_end(size_t, error_code&) {
        open.pop_back();
        return true;
    }
    bool on_document_begin(error_code&) { return true; }
    bool on_document_end(error_code&) { return true; }
    bool on_array_begin(error_code&) { return true; }
    bool on_array_end(size_t, error_code&) { return true; }
    bool on_string_part(string_view, size_t, error_code&) { return true; }
    bool on_string(string_view, size_t, error_code&) { return true; }
    bool on_number_part(string_view, error_code&) { return true; }
    bool on_int64(int64_t, string_view, error_code&) { return true; }
    bool on_uint64(uint64_t, string_view, error_code&) { return true; }
    bool on_double(double, string_view, error_code&) { return true; }
    bool on_bool(bool, error_code&) { return true; }
    bool on_null(error_code&) { return true; }
    bool on_comment_part(string_view, error_code&) { return true; }
    bool on_comment(string_view, error_code&) { return true; }
};

} // namespace

Result<json::value> parse_strict(std::string_view text, std::string_view what) {
    BERTH_ASSIGN(json::value parsed, json::parse(text, what));
    boost::json::parse_options options;
    options.max_depth = 64;
    boost::json::basic_parser<KeyWatcher> parser(options);
    boost::json::error_code error;
    parser.write_some(false, text.data(), text.size(), error);
    if (parser.handler().twice)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("{}: the key '{}' is there twice in one object; the file was "
                                "written wrongly: make or download it again",
                                what, parser.handler().key),
                    "DuplicateKey");
    return parsed;
}

} // namespace berth
