// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

#include <optional>
#include <string>
#include <string_view>

namespace berth::cli::bench {

// One kept-alive HTTP/1.1 connection on a Unix socket, one request at a time, that never blocks and
// reads no more of a reply than where it ends: a load generator's end, which must cost little. One
// thread.
class HttpLine {
  public:
    struct Reply {
        int status = 0;
        std::string body;
    };

    static Result<HttpLine> connect(const std::string& socket);
    int fd() const { return fd_.get(); }
    bool is_busy() const { return busy_; }

    // A request goes out whole or is an error: it is smaller than any socket's buffer.
    Status ask(std::string_view method, std::string_view target, std::string_view body = {});
    // What has come since; nothing while the reply is not whole.
    Result<std::optional<Reply>> take();

  private:
    UniqueFd fd_;
    std::string read_;
    bool busy_ = false;
};

} // namespace berth::cli::bench
