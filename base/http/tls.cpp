// SPDX-License-Identifier: Apache-2.0
// The server's side of TLS, and the one place where Asio's is compiled.
#include "base/http/http.h"
#include "base/http/server.h"
#include "base/http/stream.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

namespace berth::http {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

std::string plain_refusal() {
    Response refusal = error_response(
        Error{ErrorCode::kInvalidArgument, "this port speaks TLS: use https://", "TlsExpected", 0});
    return fmt::format("HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                       "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
                       refusal.body.size(), refusal.body);
}

tl::unexpected<Error> refuse_file(const std::string& path, std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, why), "TlsFiles");
}

} // namespace

asio::awaitable<Status> Stream::greet() {
    auto [error] = co_await tls_->async_handshake(ssl::stream_base::server, kTuple);
    if (!error)
        co_return Status{};
    bool plain = error.category() == asio::error::get_ssl_category() &&
                 ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
    if (plain) {
        std::string words = plain_refusal();
        (void)co_await asio::async_write(socket_, asio::buffer(words), kTuple);
    }
    co_return fail(ErrorCode::kUnavailable, fmt::format("no TLS: {}", error.message()));
}

asio::awaitable<void> Stream::say_goodbye() {
    if (tls_ && socket_.is_open())
        (void)co_await tls_->async_shutdown(kTuple);
}

Result<std::unique_ptr<ssl::context>> tls_context(const TlsFiles& files) {
    struct stat key{};
    if (::stat(files.key_file.c_str(), &key) != 0)
        return fail_errno(files.key_file);
    if ((key.st_mode & 0007U) != 0)
        return refuse_file(files.key_file, fmt::format("this private key is open to everyone on "
                                                       "this machine (mode {:04o}): chmod 0600",
                                                       key.st_mode & 07777U));
    auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
    boost::system::error_code error;
    context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                             ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                             ssl::context::no_tlsv1_1,
                         error);
    context->use_certificate_chain_file(files.certificate_file, error);
    if (error)
        return refuse_file(files.certificate_file,
                           fmt::format("no certificate in PEM: {}", error.message()));
    context->use_private_key_file(files.key_file, ssl::context::pem, error);
    if (error)
        return refuse_file(files.key_file,
                           fmt::format("no private key in PEM for the certificate in {}: {}",
                                       files.certificate_file, error.message()));
    if (::SSL_CTX_check_private_key(context->native_handle()) != 1) {
        ::ERR_clear_error();
        return refuse_file(files.key_file, fmt::format("not the key of the certificate in {}",
                                                       files.certificate_file));
    }
    return context;
}

} // namespace berth::http
