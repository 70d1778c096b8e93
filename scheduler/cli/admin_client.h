// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace berth::cli {

// The reason of the error when no daemon answers: it has an exit code of its own.
inline constexpr std::string_view kUnreachable = "DaemonUnreachable";

// Speaks REST to berthd. Blocking; one connection a call.
class AdminClient {
  public:
    // A path, "unix:/path" or "http://host:port".
    explicit AdminClient(std::string endpoint);
    const std::string& endpoint() const { return endpoint_; }

    Result<json::value> get(const std::string& target,
                            std::chrono::milliseconds timeout = kTimeout) const;
    Result<json::value> post(const std::string& target, const json::object& body,
                             std::chrono::milliseconds timeout = kTimeout) const;
    // The reply's text.
    Result<std::string> put_text(const std::string& target, std::string_view body) const;
    // Lines as they come, until `on_line` returns false or the stream ends; `silence_max` between
    // two of them.
    Status lines(const std::string& target, std::chrono::milliseconds silence_max,
                 const std::function<bool(std::string_view)>& on_line) const;

  private:
    static constexpr std::chrono::milliseconds kTimeout{30'000};
    tl::unexpected<Error> explain(Error error) const;

    std::string endpoint_;
};

// Where berthd's admin socket is unless something else is said: as berthd chooses it.
std::string default_admin_socket();

} // namespace berth::cli
