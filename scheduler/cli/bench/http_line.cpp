// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/http_line.h"

#include "base/unix_address.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <sys/socket.h>

namespace berth::cli::bench {

namespace {

constexpr size_t kPiece = 64 << 10;
constexpr size_t kStatusAt = 9; // behind "HTTP/1.1 "

size_t length_of(std::string_view head) {
    constexpr std::string_view kField = "\r\nContent-Length: ";
    size_t length = 0;
    if (size_t at = head.find(kField); at != std::string_view::npos)
        std::from_chars(head.data() + at + kField.size(), head.data() + head.size(), length);
    return length;
}

} // namespace

Result<HttpLine> HttpLine::connect(const std::string& socket) {
    HttpLine line;
    BERTH_ASSIGN(sockaddr_un address, unix_address(socket));
    line.fd_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!line.fd_)
        return fail_errno("socket");
    if (::connect(line.fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        return fail_errno(fmt::format("connecting to {}", socket));
    if (::fcntl(line.fd_.get(), F_SETFL, O_NONBLOCK) != 0)
        return fail_errno("a connection that does not block");
    return line;
}

Status HttpLine::ask(std::string_view method, std::string_view target, std::string_view body) {
    const std::string text =
        body.empty() ? fmt::format("{} {} HTTP/1.1\r\nHost: node\r\n\r\n", method, target)
                     : fmt::format("{} {} HTTP/1.1\r\nHost: node\r\nContent-Type: "
                                   "application/json\r\nContent-Length: {}\r\n\r\n{}",
                                   method, target, body.size(), body);
    const ssize_t sent = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(text.size()))
        return fail_errno(fmt::format("sending {} {}", method, target));
    busy_ = true;
    return {};
}

Result<std::optional<HttpLine::Reply>> HttpLine::take() {
    for (;;) {
        const size_t had = read_.size();
        read_.resize(had + kPiece);
        const ssize_t got = ::recv(fd_.get(), read_.data() + had, kPiece, 0);
        read_.resize(had + static_cast<size_t>(got > 0 ? got : 0));
        if (got == 0)
            return fail(ErrorCode::kUnavailable, "berthd has closed a connection of the bench");
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return fail_errno("reading a reply");
        if (got < static_cast<ssize_t>(kPiece))
            break;
    }
    const size_t head = read_.find("\r\n\r\n");
    if (head == std::string::npos)
        return std::optional<Reply>();
    const size_t body = head + 4;
    const size_t whole = body + length_of(std::string_view(read_).substr(0, head + 2));
    if (read_.size() < whole)
        return std::optional<Reply>();
    Reply reply;
    std::from_chars(read_.data() + kStatusAt, read_.data() + head, reply.status);
    reply.body = read_.substr(body, whole - body);
    read_.erase(0, whole);
    busy_ = false;
    return std::optional(std::move(reply));
}

} // namespace berth::cli::bench
