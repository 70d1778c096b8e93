// SPDX-License-Identifier: Apache-2.0
#include "base/http/client.h"

#include "base/http/client_link.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

#include <string>

namespace berth::http {

namespace beast = boost::beast;

namespace {

// Splits what arrives into lines.
class Lines {
  public:
    explicit Lines(const std::function<bool(std::string_view)>& on_line) : on_line_(on_line) {}
    bool take(std::string_view bytes) {
        rest_ += bytes;
        size_t begin = 0;
        for (size_t end = 0; (end = rest_.find('\n', begin)) != std::string::npos;
             begin = end + 1) {
            std::string_view line = std::string_view(rest_).substr(begin, end - begin);
            if (line.ends_with('\r'))
                line.remove_suffix(1);
            if (!on_line_(line))
                return false;
        }
        rest_.erase(0, begin);
        return true;
    }
    void finish() {
        if (!rest_.empty())
            on_line_(rest_);
    }

  private:
    const std::function<bool(std::string_view)>& on_line_;
    std::string rest_;
};

Response response_of(beast::http::response<beast::http::string_body>& message) {
    Response response;
    response.status = static_cast<int>(message.result_int());
    for (const auto& field : message)
        response.headers.add(
            std::string_view(field.name_string().data(), field.name_string().size()),
            std::string_view(field.value().data(), field.value().size()));
    const std::string* type = response.headers.find("Content-Type");
    response.content_type = type != nullptr ? *type : "";
    response.body = std::move(message.body());
    return response;
}

Result<Response> exchange(const std::string& endpoint, std::string_view method,
                          std::string_view target, std::string_view body,
                          const CallOptions& options, Lines* lines) {
    Timeout timeout(options.timeout);
    BERTH_ASSIGN(Link link, Link::connect(endpoint, options.ca_file, timeout));
    std::string head = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", method,
                                   target, link.host());
    for (const auto& [name, text] : options.headers.fields())
        head += fmt::format("{}: {}\r\n", name, text);
    if (!body.empty() || method == "POST" || method == "PUT")
        head += fmt::format("Content-Length: {}\r\n", body.size());
    head += "\r\n";
    head += body;
    BERTH_TRY(link.send(head, timeout));

    beast::http::response_parser<beast::http::string_body> parser;
    parser.eager(true);
    parser.body_limit(lines != nullptr ? boost::none
                                       : boost::optional<std::uint64_t>(options.body_bytes_max));
    parser.skip(method == "HEAD");
    std::string unread;
    std::string chunk(size_t{64} << 10, '\0');
    while (!parser.is_done()) {
        BERTH_ASSIGN(size_t got, link.receive(chunk.data(), chunk.size(), timeout));
        beast::error_code error;
        if (got == 0) {
            parser.put_eof(error);
            if (error || !parser.is_done())
                return fail(
                    ErrorCode::kUnavailable,
                    fmt::format("{} closed the connection before its answer was whole", endpoint));
            break;
        }
        if (lines != nullptr)
            timeout.restart();
        unread.append(chunk.data(), got);
        while (!unread.empty() && !parser.is_done()) {
            size_t used = parser.put(boost::asio::buffer(unread), error);
            unread.erase(0, used);
            if (error == beast::http::error::need_more || (!error && used == 0))
                break;
            if (error)
                return fail(ErrorCode::kCorrupt, fmt::format("{} answered what is no HTTP: {}",
                                                             endpoint, error.message()));
        }
        bool streaming =
            lines != nullptr && parser.is_header_done() && parser.get().result_int() < 400;
        if (streaming) {
            bool more = lines->take(parser.get().body());
            parser.get().body().clear();
            if (!more)
                return response_of(parser.get());
        }
    }
    if (lines != nullptr && parser.get().result_int() < 400)
        lines->finish();
    return response_of(parser.get());
}

} // namespace

Result<Response> request(const std::string& endpoint, std::string_view method,
                         std::string_view target, std::string_view body,
                         const CallOptions& options) {
    return exchange(endpoint, method, target, body, options, nullptr);
}

Result<Response> request_lines(const std::string& endpoint, std::string_view method,
                               std::string_view target, std::string_view body,
                               const std::function<bool(std::string_view)>& on_line,
                               const CallOptions& options) {
    Lines lines(on_line);
    return exchange(endpoint, method, target, body, options, &lines);
}

} // namespace berth::http
