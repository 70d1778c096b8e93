// SPDX-License-Identifier: Apache-2.0
#include "base/http/client_link.h"

#include "base/unix_address.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <climits>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <vector>

namespace berth::http {

namespace {

using Clock = std::chrono::steady_clock;

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

// "http://[::1]:80" in its parts; empty `scheme` when it is none.
struct TcpEndpoint {
    std::string scheme;
    std::string authority; // "[::1]:80"
    std::string name;      // "::1"
    std::string port;
};

TcpEndpoint tcp_endpoint(const std::string& endpoint) {
    for (std::string scheme : {"http", "https"}) {
        std::string start = scheme + "://";
        size_t colon = endpoint.rfind(':');
        if (!endpoint.starts_with(start) || colon < start.size())
            continue;
        TcpEndpoint parts{scheme, endpoint.substr(start.size()),
                          endpoint.substr(start.size(), colon - start.size()),
                          endpoint.substr(colon + 1)};
        if (parts.name.starts_with('[') && parts.name.ends_with(']'))
            parts.name = parts.name.substr(1, parts.name.size() - 2);
        return parts;
    }
    return {};
}

Status raw_send(int fd, std::string_view bytes, const Timeout& timeout) {
    while (!bytes.empty()) {
        ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes.remove_prefix(static_cast<size_t>(sent));
        } else if (errno == EAGAIN) {
            BERTH_TRY(timeout.wait(fd, POLLOUT));
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return {};
        } else if (errno != EINTR) {
            return fail_errno("sending the request");
        }
    }
    return {};
}

Result<size_t> raw_receive(int fd, char* into, size_t size, const Timeout& timeout) {
    for (;;) {
        ssize_t got = ::recv(fd, into, size, 0);
        if (got >= 0)
            return static_cast<size_t>(got);
        if (errno == EAGAIN)
            BERTH_TRY(timeout.wait(fd, POLLIN));
        else if (errno != EINTR)
            return size_t{0}; // reset: the end, which HTTP's framing judges
    }
}

} // namespace

Status Timeout::wait(int fd, short events) const {
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

// OpenSSL works on memory; the socket is read and written here, where the timeout is.
struct Link::Tls {
    SSL_CTX* context = nullptr;
    SSL* session = nullptr;
    BIO* in = nullptr;  // the session's
    BIO* out = nullptr; // the session's
    Tls() = default;
    Tls(const Tls&) = delete;
    Tls& operator=(const Tls&) = delete;
    ~Tls() {
        ::SSL_free(session);
        ::SSL_CTX_free(context);
    }
};

Link::Link() = default;
Link::Link(Link&&) noexcept = default;
Link& Link::operator=(Link&&) noexcept = default;
Link::~Link() = default;

Result<Link> Link::connect(const std::string& endpoint, const std::string& ca_file,
                           const Timeout& timeout) {
    Link link;
    if (endpoint.starts_with("unix:")) {
        BERTH_ASSIGN(sockaddr_un address, unix_address(endpoint.substr(5)));
        link.host_ = "localhost";
        BERTH_ASSIGN(link.fd_, connect_address(AF_UNIX, reinterpret_cast<sockaddr*>(&address),
                                               sizeof address, endpoint, timeout));
        return link;
    }
    TcpEndpoint parts = tcp_endpoint(endpoint);
    if (parts.scheme.empty())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("'{}': expected unix:/path, http://host:port or https://host:port",
                                endpoint));
    link.host_ = parts.authority;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (int rc = ::getaddrinfo(parts.name.c_str(), parts.port.c_str(), &hints, &found); rc != 0)
        return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", endpoint, ::gai_strerror(rc)));
    std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    BERTH_ASSIGN(link.fd_, connect_address(found->ai_family, found->ai_addr, found->ai_addrlen,
                                           endpoint, timeout));
    if (parts.scheme == "https")
        BERTH_TRY(link.greet(parts.name, ca_file, timeout));
    return link;
}

Error Link::tls_error(std::string_view doing) const {
    unsigned long number = ::ERR_get_error();
    ::ERR_clear_error();
    long verified = ::SSL_get_verify_result(tls_->session);
    if (verified != X509_V_OK)
        return Error{ErrorCode::kPermissionDenied,
                     fmt::format("the certificate of {} is not trusted: {}. Name the file of the "
                                 "one who signed it (--ca, BERTH_ADMIN_CA)",
                                 host_, ::X509_verify_cert_error_string(verified)),
                     "CertificateRefused", 0};
    const char* reason = number != 0 ? ::ERR_reason_error_string(number) : nullptr;
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{} {} failed: {}; does it speak TLS (https) or plain HTTP (http)?",
                             doing, host_, reason != nullptr ? reason : "it closed the connection"),
                 "TlsFailed", 0};
}

// Runs one step of OpenSSL's until it is done: > 0, or 0 at the peer's end.
template <typename Step>
Result<int> Link::advance(Step step, const Timeout& timeout) {
    std::vector<char> bytes(size_t{16} << 10);
    for (;;) {
        ::ERR_clear_error();
        int done = step();
        int why = done > 0 ? SSL_ERROR_NONE : ::SSL_get_error(tls_->session, done);
        for (int got = 0;
             (got = ::BIO_read(tls_->out, bytes.data(), static_cast<int>(bytes.size()))) > 0;)
            BERTH_TRY(raw_send(fd_.get(), {bytes.data(), static_cast<size_t>(got)}, timeout));
        if (done > 0)
            return done;
        if (why == SSL_ERROR_ZERO_RETURN)
            return 0;
        if (why != SSL_ERROR_WANT_READ)
            return fail(tls_error("speaking TLS with"));
        BERTH_ASSIGN(size_t got, raw_receive(fd_.get(), bytes.data(), bytes.size(), timeout));
        if (got == 0)
            return 0;
        ::BIO_write(tls_->in, bytes.data(), static_cast<int>(got));
    }
}

Status Link::greet(const std::string& name, const std::string& ca_file, const Timeout& timeout) {
    tls_ = std::make_unique<Tls>();
    tls_->context = ::SSL_CTX_new(::TLS_client_method());
    if (tls_->context == nullptr)
        return fail(ErrorCode::kInternal, "OpenSSL gives no context");
    ::SSL_CTX_set_min_proto_version(tls_->context, TLS1_2_VERSION);
    ::SSL_CTX_set_verify(tls_->context, SSL_VERIFY_PEER, nullptr);
    int trusted = ca_file.empty()
                      ? ::SSL_CTX_set_default_verify_paths(tls_->context)
                      : ::SSL_CTX_load_verify_locations(tls_->context, ca_file.c_str(), nullptr);
    if (trusted != 1) {
        ::ERR_clear_error();
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: no certificates in PEM can be read from it",
                                ca_file.empty() ? "the system's store" : ca_file));
    }
    tls_->session = ::SSL_new(tls_->context);
    tls_->in = ::BIO_new(::BIO_s_mem());
    tls_->out = ::BIO_new(::BIO_s_mem());
    ::SSL_set_bio(tls_->session, tls_->in, tls_->out);
    in6_addr numeric{};
    bool is_number = ::inet_pton(AF_INET, name.c_str(), &numeric) == 1 ||
                     ::inet_pton(AF_INET6, name.c_str(), &numeric) == 1;
    if (is_number) {
        ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(tls_->session), name.c_str());
    } else {
        ::SSL_set1_host(tls_->session, name.c_str());
        SSL_set_tlsext_host_name(tls_->session, name.c_str());
    }
    BERTH_ASSIGN(int greeted, advance([this] { return ::SSL_connect(tls_->session); }, timeout));
    if (greeted == 0)
        return fail(tls_error("greeting"));
    return {};
}

Status Link::send(std::string_view bytes, const Timeout& timeout) {
    if (!tls_)
        return raw_send(fd_.get(), bytes, timeout);
    while (!bytes.empty()) {
        int piece = static_cast<int>(std::min(bytes.size(), size_t{1} << 20));
        BERTH_ASSIGN(
            int sent,
            advance([&] { return ::SSL_write(tls_->session, bytes.data(), piece); }, timeout));
        if (sent == 0)
            return {};
        bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return {};
}

Result<size_t> Link::receive(char* into, size_t size, const Timeout& timeout) {
    if (!tls_)
        return raw_receive(fd_.get(), into, size, timeout);
    int most = static_cast<int>(std::min(size, size_t{1} << 20));
    BERTH_ASSIGN(int got, advance([&] { return ::SSL_read(tls_->session, into, most); }, timeout));
    return static_cast<size_t>(got);
}

} // namespace berth::http
