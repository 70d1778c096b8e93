// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "engine_shim/reference/serve/engine_api.h"
#include "engine_shim/reference/text/chat_template.h"
#include "engine_shim/reference/text/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}

namespace berth::http {
class Keeping;
enum class Leave;
} // namespace berth::http

namespace berth::serve {

// The OpenAI-compatible HTTP server of an engine: GET /v1/models, POST /v1/completions and
// /v1/chat/completions (with streaming), GET /health, GET /metrics.
//
// Everything runs on the io_context's one thread; the engine's callbacks are posted to it. The
// io_context, the engine and the tokenizer outlive the server; the io_context also outlives the
// engine's last callback (stop() cancels what is in flight, the events still come).
// `chat` may be an error: chat requests are then refused with it.
class ApiServer {
  public:
    ApiServer(boost::asio::io_context& context, engine::EngineApi& engine,
              const text::Tokenizer& tokenizer, Result<text::ChatTemplate> chat);
    ApiServer(const ApiServer&) = delete;
    ApiServer& operator=(const ApiServer&) = delete;
    ~ApiServer(); // stops

    // "127.0.0.1:8000", "[::1]:0" or "unix:/path". Port 0: the system chooses. Returns where it
    // listens: "http://127.0.0.1:41234".
    Result<std::string> listen(const std::string& address);
    // Goes on with a socket that berthd holds, as http::Server does; returns where it is.
    Result<std::string> take_over(UniqueFd socket, std::shared_ptr<http::Keeping> keeping);
    // As http::Server does.
    void leave(http::Leave what);
    size_t unfinished() const;
    size_t answering() const;
    // Closes the listeners and every connection, and cancels the requests in flight. Idempotent.
    void stop();
    // Completion requests that are being answered.
    uint64_t requests_in_flight() const;

  private:
    class Core;
    std::shared_ptr<Core> core_;
};

} // namespace berth::serve
