// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/router.h"
#include "base/result.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}

namespace berth::http {

struct ServerLimits {
    size_t header_bytes_max = size_t{16} << 10;    // beyond it: 431
    size_t body_bytes_max = size_t{8} << 20;       // beyond it: 413
    size_t connections_max = 256;                  // beyond it: 503, at once
    std::chrono::milliseconds idle_max{60'000};    // between two requests of one connection
    std::chrono::milliseconds request_max{30'000}; // from its first byte to its last: 408
    std::chrono::milliseconds write_max{30'000};   // for a peer to take what one write sends it
};

// An HTTP/1.1 server on Unix and TCP sockets: keep-alive, HEAD, Expect: 100-continue, chunked
// streams. Everything runs on the io_context's one thread, from which alone it may be called (or
// before that thread runs). The io_context must outlive it. How long a handler takes is its own
// business: no limit is set here.
class Server {
  public:
    Server(boost::asio::io_context& context, Router router, ServerLimits limits = {});
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
    ~Server(); // stops

    // The file gets `mode`. A dead listener's file is replaced; a live one is AlreadyExists.
    Status listen_unix(const std::string& path, int mode);
    // Port 0: the system chooses. Returns the port.
    Result<uint16_t> listen_tcp(const std::string& host, uint16_t port);

    // Closes the listeners (and removes the Unix sockets' files) and every connection; whatever
    // handlers await is cancelled. Idempotent. The coroutines end in the io_context's next turns.
    void stop();
    size_t connections() const;

  private:
    class Core;
    std::shared_ptr<Core> core_;
};

} // namespace berth::http
