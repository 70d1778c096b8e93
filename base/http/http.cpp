// SPDX-License-Identifier: Apache-2.0
#include "base/http/http.h"

#include "base/json.h"

#include <boost/beast/http/status.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace berth::http {

namespace {

bool same_name(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
        return std::tolower(x) == std::tolower(y);
    });
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

ErrorCode code_of(int status) {
    switch (status) {
    case 400:
        return ErrorCode::kInvalidArgument;
    case 401:
    case 403:
        return ErrorCode::kPermissionDenied;
    case 404:
        return ErrorCode::kNotFound;
    case 409:
        return ErrorCode::kFailedPrecondition;
    case 412:
        return ErrorCode::kMismatch;
    case 501:
        return ErrorCode::kUnsupported;
    case 503:
        return ErrorCode::kUnavailable;
    case 504:
        return ErrorCode::kDeadlineExceeded;
    case 507:
        return ErrorCode::kResourceExhausted;
    default:
        return status < 500 ? ErrorCode::kInvalidArgument : ErrorCode::kInternal;
    }
}

} // namespace

void Headers::set(std::string_view name, std::string_view text) {
    std::erase_if(fields_, [&](const Field& field) { return same_name(field.first, name); });
    add(name, text);
}

void Headers::add(std::string_view name, std::string_view text) {
    fields_.emplace_back(name, text);
}

const std::string* Headers::find(std::string_view name) const {
    for (const Field& field : fields_)
        if (same_name(field.first, name))
            return &field.second;
    return nullptr;
}

Response json_response(const boost::json::value& body, int status) {
    Response response;
    response.status = status;
    response.body = json::serialize(body) + "\n";
    return response;
}

Response text_response(std::string body, int status, std::string content_type) {
    Response response;
    response.status = status;
    response.content_type = std::move(content_type);
    response.body = std::move(body);
    return response;
}

Response error_response(const Error& error) {
    return error_response(error, http_status(error.code));
}

Response error_response(const Error& error, int status) {
    return json_response(json::from_error(error), status);
}

Error error_from(const Response& response) {
    auto body = json::parse(response.body, "the reply");
    if (body && body->is_object() && body->as_object().contains("message"))
        return json::to_error(*body);
    return Error{code_of(response.status),
                 fmt::format("HTTP {} {}: {}", response.status, reason_phrase(response.status),
                             response.body.substr(0, 200)),
                 {},
                 0};
}

Result<boost::json::value> json_from(const Response& response) {
    if (response.status < 200 || response.status > 299)
        return fail(error_from(response));
    return json::parse(response.body, "the reply");
}

std::string_view reason_phrase(int status) {
    auto phrase = boost::beast::http::obsolete_reason(
        boost::beast::http::int_to_status(static_cast<unsigned>(status)));
    return {phrase.data(), phrase.size()};
}

Result<std::string> percent_decode(std::string_view text, bool plus_is_space) {
    std::string decoded;
    decoded.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        char c = text[i];
        if (c == '%') {
            int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
            int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0)
                return fail(ErrorCode::kInvalidArgument,
                            fmt::format("broken escape at byte {} of '{}': expected % and two "
                                        "hexadecimal digits",
                                        i, text));
            c = static_cast<char>(high * 16 + low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        if (c == '\0')
            return fail(ErrorCode::kInvalidArgument, "a zero byte is not allowed in a path");
        decoded += c;
    }
    return decoded;
}

std::string percent_encode(std::string_view text) {
    std::string encoded;
    for (char c : text) {
        auto byte = static_cast<unsigned char>(c);
        if (std::isalnum(byte) != 0 || c == '-' || c == '.' || c == '_' || c == '~')
            encoded += c;
        else
            encoded += fmt::format("%{:02X}", byte);
    }
    return encoded;
}

Result<std::map<std::string, std::string>> parse_query(std::string_view query) {
    std::map<std::string, std::string> fields;
    while (!query.empty()) {
        std::string_view field = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(query.size(), field.size() + 1));
        if (field.empty())
            continue;
        size_t equals = field.find('=');
        BERTH_ASSIGN(std::string name, percent_decode(field.substr(0, equals), true));
        std::string text;
        if (equals != std::string_view::npos) {
            BERTH_ASSIGN(text, percent_decode(field.substr(equals + 1), true));
        }
        fields[name] = std::move(text);
    }
    return fields;
}

} // namespace berth::http
