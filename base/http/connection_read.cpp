// SPDX-License-Identifier: Apache-2.0
// How a connection reads a request, within its limits.
#include "base/http/connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>

namespace berth::http {

namespace asio = boost::asio;
namespace beast = boost::beast;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

} // namespace

Request Connection::request_of(beast::http::request<beast::http::string_body>& message) {
    Request request;
    request.method = std::string(message.method_string());
    request.target = std::string(message.target());
    request.path = request.target.substr(0, request.target.find('?'));
    for (const auto& field : message)
        request.headers.add(
            std::string_view(field.name_string().data(), field.name_string().size()),
            std::string_view(field.value().data(), field.value().size()));
    request.body = std::move(message.body());
    request.credentials = remote_.credentials;
    request.address = remote_.address;
    return request;
}

// Most connections are idle most of the time: meanwhile each keeps a small buffer alone.
asio::awaitable<bool> Connection::wait_first_byte() {
    if (buffer_.size() > 0 || (is_kept() && !kept_->inbound().empty()))
        co_return true;
    buffer_.shrink_to_fit();
    const ServerLimits& limits = setting_->limits;
    arm(finishing_       ? std::min(limits.idle_max, kLastCall)
        : requests_ == 0 ? std::min(limits.idle_max, limits.header_max)
                         : limits.idle_max,
        Direction::kReading);
    waits_since_ = std::chrono::steady_clock::now();
    const std::shared_ptr<KeptConnection> kept = is_kept() ? kept_ : nullptr;
    asio::mutable_buffer room;
    if (kept)
        room = asio::mutable_buffer(kept->room().data(), kept->room().size());
    else
        room = buffer_.prepare(kIdleBytes);
    auto [error, got] = co_await stream_.async_read_some(room, kTuple);
    disarm();
    waits_since_.reset();
    if (kept && !kept->active() && !left_) { // it was given up meanwhile
        take_leftover();
        if (buffer_.size() > 0)
            co_return true;
        if (error == asio::error::operation_aborted && stream_.socket().is_open() &&
            (requests_ == 0 || has_unread()))
            co_return co_await wait_first_byte();
        co_return false;
    }
    if (kept)
        kept->received(got);
    else
        buffer_.commit(got);
    co_return !error && got > 0 && !left_;
}

bool Connection::too_many_fields(const Parser& parser) const {
    const auto& message = parser.get();
    return static_cast<size_t>(std::distance(message.begin(), message.end())) >
           setting_->limits.headers_max;
}

asio::awaitable<Connection::Read> Connection::read_plain(Parser* parser) {
    const ServerLimits& limits = setting_->limits;
    Read read;
    size_t got = 0;
    arm(std::min(limits.header_max, limits.request_max), Direction::kReading);
    std::tie(read.error, got) =
        co_await beast::http::async_read_header(stream_, buffer_, *parser, kTuple);
    read.late = disarm();
    read.too_many_fields = !read.error && too_many_fields(*parser);
    if (read.error || read.too_many_fields || parser->is_done())
        co_return read;
    arm(limits.request_max, Direction::kReading);
    if (beast::iequals(parser->get()[beast::http::field::expect], "100-continue")) {
        std::string go_on(kContinue);
        (void)co_await asio::async_write(stream_, asio::buffer(go_on), kTuple);
    }
    std::tie(read.error, got) = co_await beast::http::async_read(stream_, buffer_, *parser, kTuple);
    read.late = disarm();
    co_return read;
}

asio::awaitable<std::optional<Request>> Connection::read_request(Head* head) {
    const ServerLimits& limits = setting_->limits;
    Parser parser;
    parser.header_limit(static_cast<std::uint32_t>(limits.header_bytes_max));
    parser.body_limit(limits.body_bytes_max);
    Read read;
    take_leftover();
    if (is_kept())
        read = co_await read_kept(&parser);
    else
        read = co_await read_plain(&parser);
    const boost::system::error_code error = read.error;
    const auto& message = parser.get();
    auto refuse = [&](int status, ErrorCode code, std::string why) {
        head->keep_alive = false;
        head->refusal = error_response(Error{code, std::move(why), {}, 0}, status);
    };
    head->is_http_1_0 = message.version() == 10;
    head->is_head = message.method() == beast::http::verb::head;
    head->keep_alive = message.keep_alive();
    if (read.late)
        refuse(408, ErrorCode::kDeadlineExceeded, "the request took too long to arrive");
    else if (read.too_many_fields)
        refuse(431, ErrorCode::kInvalidArgument,
               fmt::format("the header has {} fields; {} at most are read",
                           std::distance(message.begin(), message.end()), limits.headers_max));
    else if (error == beast::http::error::header_limit ||
             error == beast::http::error::buffer_overflow)
        refuse(431, ErrorCode::kInvalidArgument,
               fmt::format("the header is over {} bytes", limits.header_bytes_max));
    else if (error == beast::http::error::body_limit)
        refuse(413, ErrorCode::kInvalidArgument,
               fmt::format("the body is over {} bytes", limits.body_bytes_max));
    else if (error.category() ==
                 beast::http::make_error_code(beast::http::error::bad_method).category() &&
             error != beast::http::error::end_of_stream &&
             error != beast::http::error::partial_message)
        refuse(400, ErrorCode::kInvalidArgument,
               fmt::format("not an HTTP/1.1 request: {}", error.message()));
    if (head->refusal)
        co_return Request{};
    if (error)
        co_return std::nullopt;
    Request request = request_of(parser.get());
    if (request.path.size() < request.target.size()) {
        auto query = parse_query(std::string_view(request.target).substr(request.path.size() + 1));
        if (query)
            request.query = std::move(*query);
        else
            refuse(400, query.error().code, query.error().message);
    }
    co_return request;
}

} // namespace berth::http
