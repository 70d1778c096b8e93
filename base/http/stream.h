// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>

#include <memory>
#include <utility>

// Inside base/http only: Asio's TLS is heavy.
namespace berth::http {

using Socket = boost::asio::generic::stream_protocol::socket;

// One connection's bytes, plain or through TLS, for Asio's and Beast's composed operations. On the
// io thread alone; the context of TLS must outlive it.
class Stream {
  public:
    using executor_type = Socket::executor_type;

    Stream(Socket socket, boost::asio::ssl::context* tls)
        : socket_(std::move(socket)),
          tls_(tls == nullptr
                   ? nullptr
                   : std::make_unique<boost::asio::ssl::stream<Socket&>>(socket_, *tls)) {}
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    Socket& socket() { return socket_; }
    bool is_tls() const { return tls_ != nullptr; }
    executor_type get_executor() { return socket_.get_executor(); }

    template <typename Buffers, typename Token>
    auto async_read_some(const Buffers& buffers, Token&& token) {
        if (tls_)
            return tls_->async_read_some(buffers, std::forward<Token>(token));
        return socket_.async_read_some(buffers, std::forward<Token>(token));
    }
    template <typename Buffers, typename Token>
    auto async_write_some(const Buffers& buffers, Token&& token) {
        if (tls_)
            return tls_->async_write_some(buffers, std::forward<Token>(token));
        return socket_.async_write_some(buffers, std::forward<Token>(token));
    }

    // Of TLS: the server's side of the greeting. Someone who speaks plain HTTP is told so, in it.
    boost::asio::awaitable<Status> greet();
    // Of TLS: tells the peer that nothing follows. Waits for its word in turn: set a limit.
    boost::asio::awaitable<void> say_goodbye();

  private:
    Socket socket_;
    std::unique_ptr<boost::asio::ssl::stream<Socket&>> tls_;
};

struct TlsFiles;
// InvalidArgument, in words, for files that are missing, no PEM, or do not belong together; for a
// key that others may read.
Result<std::unique_ptr<boost::asio::ssl::context>> tls_context(const TlsFiles& files);

} // namespace berth::http
