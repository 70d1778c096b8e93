// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <boost/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Boost.JSON with errors that name the field. Include in .cpp files and in private headers only.
namespace berth::json {

using boost::json::array;
using boost::json::object;
using boost::json::serialize;
using boost::json::value;

// Parses one document; `what` names it in the error (a path, "the request's body"), which also says
// at which byte, line and column it broke. Refuses nesting over 64 levels and duplicate keys are
// the last one's (as the library does).
Result<value> parse(std::string_view text, std::string_view what);

// Reads an object's fields by type. The first failure is kept and returned by finish(), which also
// refuses fields that nobody asked for unless allow_unknown() was called. `what` prefixes each
// error: "the request's body: field 'mode': expected a string, found a number".
class Reader {
  public:
    Reader(const value& from, std::string_view what);

    std::string string(std::string_view field);
    std::string string(std::string_view field, std::string_view fallback);
    int64_t integer(std::string_view field);
    int64_t integer(std::string_view field, int64_t fallback);
    uint64_t unsigned_integer(std::string_view field);
    uint64_t unsigned_integer(std::string_view field, uint64_t fallback);
    double number(std::string_view field);
    double number(std::string_view field, double fallback);
    bool boolean(std::string_view field, bool fallback);
    // nullptr when absent; any type.
    const value* any(std::string_view field);

    Reader& allow_unknown();
    // Records a failure that the caller found in a field.
    void refuse(std::string_view field, std::string_view why);
    Status finish();

  private:
    const value* find(std::string_view field, bool required);
    void expected(std::string_view field, std::string_view type, const value& found);

    std::string what_;
    const object* object_ = nullptr;
    array seen_;
    bool allow_unknown_ = false;
    std::optional<Error> error_;
};

// "a string", "a number", "an object", ...
std::string_view kind_name(const value& of);

// {"code": ..., "reason": ..., "message": ...} and back.
value from_error(const Error& error);
Error to_error(const value& from);

} // namespace berth::json
