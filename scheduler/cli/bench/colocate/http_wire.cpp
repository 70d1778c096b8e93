// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/http_wire.h"

#include "base/number.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

namespace berth::cli::bench {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;

namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;

using Parser = beast::http::response_parser<beast::http::string_body>;

Status take_bytes(Parser& parser, std::string& unread) {
    beast::error_code error;
    while (!unread.empty() && !parser.is_done()) {
        const size_t used = parser.put(asio::buffer(unread), error);
        unread.erase(0, used);
        if (error == beast::http::error::need_more || (!error && used == 0))
            return {};
        if (error)
            return fail(ErrorCode::kCorrupt,
                        "the engine answered what is no HTTP: " + error.message());
    }
    return {};
}

} // namespace

Result<Endpoint> endpoint_from(const std::string& url) {
    constexpr std::string_view kScheme = "http://";
    const size_t colon = url.rfind(':');
    if (url.starts_with(kScheme) && colon != std::string::npos && colon > kScheme.size()) {
        std::string host = url.substr(kScheme.size(), colon - kScheme.size());
        if (host.starts_with('[') && host.ends_with(']'))
            host = host.substr(1, host.size() - 2);
        if (const auto port = number_in<uint16_t>(std::string_view(url).substr(colon + 1)))
            return Endpoint{std::move(host), *port};
    }
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected an engine's endpoint like http://127.0.0.1:8000, found '{}'", url));
}

struct HttpWire::State {
    State(asio::io_context& context, Endpoint where)
        : socket(context), endpoint(std::move(where)) {}

    tcp::socket socket;
    Endpoint endpoint;
    std::string request;
    OnPiece on_piece;
    bool heard = false; // anything of the reply

    void close() {
        beast::error_code ignored;
        socket.close(ignored);
    }
    asio::awaitable<Status> open();
    asio::awaitable<Result<Reply>> once();
};

HttpWire::HttpWire(asio::io_context& context, Endpoint endpoint)
    : state_(std::make_shared<State>(context, std::move(endpoint))) {}

bool HttpWire::is_open() const {
    return state_->socket.is_open();
}

asio::awaitable<Status> HttpWire::State::open() {
    beast::error_code wrong;
    const auto address = asio::ip::make_address(endpoint.host, wrong);
    if (wrong)
        co_return fail(ErrorCode::kInvalidArgument,
                       fmt::format("'{}' is no address in numbers", endpoint.host));
    const tcp::endpoint to(address, endpoint.port);
    auto [error] = co_await socket.async_connect(to, asio::as_tuple(asio::use_awaitable));
    if (error) {
        close();
        co_return fail(
            ErrorCode::kUnavailable,
            fmt::format("connecting to {}:{}: {}", endpoint.host, endpoint.port, error.message()));
    }
    socket.set_option(tcp::no_delay(true), error);
    co_return Status();
}

asio::awaitable<Result<HttpWire::Reply>> HttpWire::State::once() {
    heard = false;
    if (!socket.is_open()) {
        Status opened = co_await open();
        if (!opened)
            co_return fail(opened.error());
    }
    auto [unsent, sent] = co_await asio::async_write(socket, asio::buffer(request),
                                                     asio::as_tuple(asio::use_awaitable));
    if (unsent)
        co_return fail(ErrorCode::kUnavailable, "sending a request: " + unsent.message());
    Parser parser;
    parser.eager(true);
    parser.body_limit(boost::none);
    std::string unread;
    std::string piece(kPieceBytes, '\0');
    while (!parser.is_done()) {
        auto [error, got] = co_await socket.async_read_some(asio::buffer(piece),
                                                            asio::as_tuple(asio::use_awaitable));
        const Clock::time_point at = Clock::now();
        if (error == asio::error::eof) {
            beast::error_code cut;
            parser.put_eof(cut);
            if (cut || !parser.is_done())
                co_return fail(ErrorCode::kUnavailable,
                               "the engine closed the connection before its answer was whole");
            break;
        }
        if (error)
            co_return fail(ErrorCode::kUnavailable, "reading an answer: " + error.message());
        heard = true;
        unread.append(piece.data(), got);
        if (Status taken = take_bytes(parser, unread); !taken)
            co_return fail(taken.error());
        if (on_piece && parser.is_header_done() && parser.get().result_int() < 400) {
            if (!parser.get().body().empty())
                on_piece(parser.get().body(), at);
            parser.get().body().clear();
        }
    }
    Reply reply{static_cast<int>(parser.get().result_int()), std::move(parser.get().body())};
    if (!parser.keep_alive())
        close();
    co_return reply;
}

asio::awaitable<Result<HttpWire::Reply>> HttpWire::exchange(std::string request, OnPiece on_piece) {
    const std::shared_ptr<State> state = state_;
    state->request = std::move(request);
    state->on_piece = std::move(on_piece);
    const bool was_open = state->socket.is_open();
    Result<Reply> reply = co_await state->once();
    if (!reply && was_open && !state->heard) {
        state->close();
        reply = co_await state->once();
    }
    if (!reply)
        state->close();
    state->on_piece = nullptr;
    co_return reply;
}

} // namespace berth::cli::bench
