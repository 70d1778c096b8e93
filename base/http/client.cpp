// SPDX-License-Identifier: Apache-2.0
#include "base/http/client.h"

#include "base/http/http.h"
#include "base/unique_fd.h"
#include "base/unix_address.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace berth::http {

namespace beast = boost::beast;

namespace {

using Clock = std::chrono::steady_clock;

// A limit of zero is none.
class Timeout {
  public:
    explicit Timeout(std::chrono::milliseconds limit) : limit_(limit) { restart(); }
    void restart() { until_ = Clock::now() + limit_; }
    Status wait(int fd, short events) const {
        for (;;) {
            int left = -1;
            if (limit_.count() > 0) {
                auto rest = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now());
                left = static_cast<int>(std::clamp<int64_t>(rest.count(), 0, INT_MAX));
            }
            pollfd waiting{fd, events, 0};
            int ready = ::poll(&waiting, 1, left);
            if (ready > 0)
                return {};
            if (ready == 0)
                return fail(ErrorCode::kDeadlineExceeded,
                            fmt::format("no answer within {} ms", limit_.count()));
            if (errno != EINTR)
                return fail_errno("poll");
        }
    }

  private:
    std::chrono::milliseconds limit_;
    Clock::time_point until_;
};

Result<UniqueFd> connect_address(int family, const sockaddr* address, socklen_t size,
                                 const std::string& endpoint, const Timeout& timeout) {
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd)
        return fail_errno("socket");
    int rc = ::connect(fd.get(), address, size);
    if (rc != 0 && (errno == EINPROGRESS || errno == EINTR)) {
        BERTH_TRY(timeout.wait(fd.get(), POLLOUT));
        int error_number = 0;
        socklen_t error_size = sizeof error_number;
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error_number, &error_size);
        errno = error_number;
        rc = error_number == 0 ? 0 : -1;
    }
    if (rc != 0) {
        int error_number = errno;
        Error error = fail_errno(fmt::format("connecting to {}", endpoint), error_number).value();
        if (error_number == ENOENT || error_number == EAGAIN)
            error.code = ErrorCode::kUnavailable;
        return fail(std::move(error));
    }
    return fd;
}

Result<UniqueFd> connect_endpoint(const std::string& endpoint, const Timeout& timeout,
                                  std::string& host) {
    if (endpoint.starts_with("unix:")) {
        BERTH_ASSIGN(sockaddr_un address, unix_address(endpoint.substr(5)));
        host = "localhost";
        return connect_address(AF_UNIX, reinterpret_cast<sockaddr*>(&address), sizeof address,
                               endpoint, timeout);
    }
    size_t colon = endpoint.rfind(':');
    if (!endpoint.starts_with("http://") || colon < 7)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("'{}': expected unix:/path or http://host:port", endpoint));
    host = endpoint.substr(7);
    std::string name = endpoint.substr(7, colon - 7);
    if (name.starts_with('[') && name.ends_with(']'))
        name = name.substr(1, name.size() - 2);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (int rc = ::getaddrinfo(name.c_str(), endpoint.substr(colon + 1).c_str(), &hints, &found);
        rc != 0)
        return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", endpoint, ::gai_strerror(rc)));
    std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    return connect_address(found->ai_family, found->ai_addr, found->ai_addrlen, endpoint, timeout);
}

Status send_all(int fd, std::string_view bytes, const Timeout& timeout) {
    while (!bytes.empty()) {
        ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes.remove_prefix(static_cast<size_t>(sent));
        } else if (errno == EAGAIN) {
            BERTH_TRY(timeout.wait(fd, POLLOUT));
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return {}; // an early refusal may lie in the socket: read it
        } else if (errno != EINTR) {
            return fail_errno("sending the request");
        }
    }
    return {};
}

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
    std::string host;
    BERTH_ASSIGN(UniqueFd fd, connect_endpoint(endpoint, timeout, host));
    std::string head =
        fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", method, target, host);
    for (const auto& [name, text] : options.headers.fields())
        head += fmt::format("{}: {}\r\n", name, text);
    if (!body.empty() || method == "POST" || method == "PUT")
        head += fmt::format("Content-Length: {}\r\n", body.size());
    head += "\r\n";
    head += body;
    BERTH_TRY(send_all(fd.get(), head, timeout));

    beast::http::response_parser<beast::http::string_body> parser;
    parser.eager(true);
    parser.body_limit(lines != nullptr ? boost::none
                                       : boost::optional<std::uint64_t>(options.body_bytes_max));
    parser.skip(method == "HEAD");
    std::string unread;
    std::string chunk(size_t{64} << 10, '\0');
    while (!parser.is_done()) {
        ssize_t got = ::recv(fd.get(), chunk.data(), chunk.size(), 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN) {
            BERTH_TRY(timeout.wait(fd.get(), POLLIN));
            continue;
        }
        beast::error_code error;
        if (got <= 0) {
            parser.put_eof(error);
            if (error || !parser.is_done())
                return fail(
                    ErrorCode::kUnavailable,
                    fmt::format("{} closed the connection before its answer was whole", endpoint));
            break;
        }
        if (lines != nullptr)
            timeout.restart();
        unread.append(chunk.data(), static_cast<size_t>(got));
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
