// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/router.h"
#include "base/unique_fd.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace boost::asio {
class io_context;
}

namespace berth::http {

class Keeping;

// What of its kept connections a server leaves to a successor when it hands over; the rest ends
// with this process. kConnections: those that have no request which this process has begun to
// answer (to the next one it would mean something else). kLate: each once its request is over, and
// the journal stays this process's until it leaves kRequests: all, as they are.
enum class Leave { kNothing, kConnections, kLate, kRequests };

struct ServerLimits {
    size_t header_bytes_max = size_t{16} << 10; // beyond it: 431
    size_t headers_max = 100;                   // fields of one header; beyond it: 431
    size_t body_bytes_max = size_t{8} << 20;    // beyond it: 413
    // Beyond it: 503, at once; at a socket that was taken over they wait in its queue, and whoever
    // has waited longest for a further request of its peer's makes room.
    size_t connections_max = 256;
    // Of one user (Unix sockets) or one address (TCP); 0: no limit but that of all. Beyond it: 503.
    size_t connections_per_peer_max = 0;
    // After so many requests a connection is ended, with a word in its last answer.
    uint64_t requests_max = 1'000'000;
    std::chrono::milliseconds idle_max{60'000};    // between two requests of one connection
    std::chrono::milliseconds header_max{10'000};  // for a header; also from the connection on: 408
    std::chrono::milliseconds request_max{30'000}; // for a body, and no header takes longer: 408
    std::chrono::milliseconds write_max{30'000};   // for a peer to take what one write sends it
};

// PEM: the certificate with those that lead to its root, and its private key.
struct TlsFiles {
    std::string certificate_file;
    std::string key_file;
};

struct TcpOptions {
    std::optional<TlsFiles> tls;
    bool loopback_only = false; // InvalidArgument where the name leads elsewhere
};

// An HTTP/1.1 server on Unix and TCP sockets: keep-alive, HEAD, Expect: 100-continue, chunked
// streams, TLS. Many peers at once are served a few requests a turn of the loop, so that what else
// runs there is not kept waiting. Everything runs on the io_context's one thread, from which alone
// it may be called (or before that thread runs). The io_context must outlive it. How long a handler
// takes is its own business: no limit is set here.
class Server {
  public:
    Server(boost::asio::io_context& context, Router router, ServerLimits limits = {});
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
    ~Server(); // stops

    // The file gets `mode`. A dead listener's file is replaced; a live one is AlreadyExists.
    Status listen_unix(const std::string& path, int mode);
    // Port 0: the system chooses. Returns the port.
    Result<uint16_t> listen_tcp(const std::string& host, uint16_t port,
                                const TcpOptions& options = {});

    // Goes on with a socket that somebody else has bound and listens at; returns where:
    // "http://127.0.0.1:8000" or "unix:/path". With `keeping`, which was claimed, its connections
    // outlive this process, and those that an earlier one left are gone on with.
    Result<std::string> take_over(UniqueFd socket, std::shared_ptr<Keeping> keeping);
    // Hands over: accepts nothing more, and leaves to a successor at once what is kept of `what`.
    // Nothing in the journal is this process's any more then (but see kLate). Other connections end
    // with their request, those without one now.
    void leave(Leave what);
    size_t unfinished() const; // connections that were not left, and have not ended

    // Closes the listeners (and removes the Unix sockets' files) and every connection; whatever
    // handlers await is cancelled. Idempotent. The coroutines end in the io_context's next turns.
    void stop();
    size_t connections() const;
    size_t answering() const; // of them: a request's last byte is still to be written

  private:
    class Core;
    std::shared_ptr<Core> core_;
};

} // namespace berth::http
