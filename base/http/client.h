// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/http.h"
#include "base/result.h"

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

// A blocking HTTP/1.1 client, one connection a call. Any thread.
namespace berth::http {

struct CallOptions {
    Headers headers;
    // For the whole reply; of a stream, for its headers and then for each silence between two
    // pieces (zero: no limit on silence).
    std::chrono::milliseconds timeout{30'000};
    size_t body_bytes_max = size_t{256} << 20; // not for streams
    std::string ca_file; // https: PEM, whom to trust; empty: whom this system trusts
};

// `endpoint` is "unix:/path", "http://host:port" or "https://host:port"; `target` is a path with
// its query. Unavailable when nobody listens there or the connection breaks; DeadlineExceeded after
// the timeout. A reply with an error status is a Response (see error_from).
Result<Response> request(const std::string& endpoint, std::string_view method,
                         std::string_view target, std::string_view body = {},
                         const CallOptions& options = {});

// The same for a reply that is a stream of lines (NDJSON, SSE): calls `on_line` with each, without
// its line end, as it arrives, until it returns false or the stream ends. The Response returned has
// no body, unless its status is 400 or more: then nothing was streamed.
Result<Response> request_lines(const std::string& endpoint, std::string_view method,
                               std::string_view target, std::string_view body,
                               const std::function<bool(std::string_view)>& on_line,
                               const CallOptions& options = {});

} // namespace berth::http
