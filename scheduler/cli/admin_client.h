// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/client.h"
#include "base/json.h"

#include <functional>
#include <string>
#include <string_view>

namespace berth::cli {

// Why a call came to nothing: nobody answered (the program ends with 3, not 1).
inline constexpr std::string_view kNotReachable = "DaemonNotReachable";

// berthd's REST interface as values. Each call is one connection and blocks until the reply; any
// thread. A reply with an error status is that error.
class AdminClient {
  public:
    // `token` is for TCP endpoints, which ask for one; `ca_file` for https, empty: whom the system
    // trusts.
    explicit AdminClient(std::string endpoint, std::string token = {}, std::string ca_file = {})
        : endpoint_(std::move(endpoint)), token_(std::move(token)), ca_file_(std::move(ca_file)) {}

    Result<json::value> get(const std::string& target,
                            std::chrono::milliseconds timeout = std::chrono::seconds(30)) const;
    Result<json::value> post(const std::string& target, const json::object& body,
                             std::chrono::milliseconds timeout = std::chrono::seconds(30)) const;
    // The reply itself, for what JSON alone does not say (text, an ETag). `headers` go along.
    Result<http::Response> exchange(const std::string& method, const std::string& target,
                                    const std::string& body = {},
                                    const http::Headers& headers = {}) const;
    // NDJSON, line by line, until `on_line` says false or the stream ends.
    Status lines(const std::string& target,
                 const std::function<bool(std::string_view)>& on_line) const;

    const std::string& endpoint() const { return endpoint_; }
    // The socket's path; empty when the endpoint is TCP.
    std::string socket_path() const;

  private:
    Error explained(const Error& error) const;
    http::CallOptions call_options() const;
    std::string endpoint_, token_, ca_file_;
};

// "/run/berth/admin.sock" -> "unix:/run/berth/admin.sock"; what has a scheme stays.
std::string endpoint_of(const std::string& admin);
// The token in a file, white space at its end left out. An error for a file that others may read.
Result<std::string> token_in(const std::string& file);
// Where berthd listens when nobody says otherwise.
std::string default_admin();

// The `items` of a list reply.
Result<json::array> items_of(const json::value& reply);
// Fields of replies, with a fallback for what a daemon of another version does not say.
std::string text_at(const json::object& from, std::string_view field);
uint64_t number_at(const json::object& from, std::string_view field);
double real_at(const json::object& from, std::string_view field);
bool flag_at(const json::object& from, std::string_view field);

} // namespace berth::cli
