// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/http.h"

#include <boost/asio/awaitable.hpp>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace berth::http {

// How a streaming handler answers. All calls on the io thread; one call at a time.
class ResponseStream {
  public:
    virtual ~ResponseStream() = default;
    // Answers in one piece instead of streaming. At most once, and not after start().
    virtual boost::asio::awaitable<Status> respond(Response response) = 0;
    // Sends the status line and the headers; the body follows by write(), in chunked encoding.
    virtual boost::asio::awaitable<Status> start(int status, std::string content_type,
                                                 Headers headers) = 0;
    // Sends one chunk (nothing for an empty one), and suspends until the socket has taken it.
    // Unavailable: the peer is gone or too slow. The body ends when the handler returns.
    virtual boost::asio::awaitable<Status> write(std::string chunk) = 0;
    virtual bool started() const = 0;
};

using StreamPtr = std::shared_ptr<ResponseStream>;
// Coroutines on the server's io_context. A handler that throws gives 500 and a log line. When the
// server stops, whatever the handler awaits is cancelled and throws operation_aborted: let it pass.
using Handler = std::function<boost::asio::awaitable<Response>(Request)>;
// Of the two, for NDJSON watches, SSE, and answers that may be either. One that returns without
// respond() or start() gives 500.
using StreamHandler = std::function<boost::asio::awaitable<void>(Request, StreamPtr)>;

// Finds the handler of a method and a path. Templates are segments: literals ("/v1/weights:load"),
// "{name}" for one whole non-empty segment, and "{name}:verb" for one that ends in that verb. Of
// several templates that fit, the one with the earlier literal, then the earlier verb, wins; only
// then the method counts. HEAD falls back to GET. Immutable once the server has it.
class Router {
  public:
    struct Endpoint {
        Handler plain;
        StreamHandler stream; // exactly one of the two is set
    };
    enum class Outcome { kFound, kNotFound, kMethodNotAllowed, kBadPath };
    struct Match {
        Outcome outcome = Outcome::kNotFound;
        const Endpoint* endpoint = nullptr;
        std::string_view path_template; // as given to add(); lives as long as the router
        std::map<std::string, std::string> params;
        std::string allow; // kMethodNotAllowed: "GET, HEAD, PUT"
        Error error;       // kBadPath
    };

    // A template that is malformed or already has that method is our bug: it throws
    // std::invalid_argument.
    void add(std::string_view method, std::string_view path_template, Handler handler);
    void add_stream(std::string_view method, std::string_view path_template, StreamHandler handler);

    Match match(std::string_view method, std::string_view path) const;

  private:
    enum class SegmentKind { kLiteral, kVerb, kParameter };
    struct Segment {
        SegmentKind kind = SegmentKind::kLiteral;
        std::string text; // the literal, or ":verb"
        std::string name; // the parameter
    };
    struct Route {
        std::string path_template;
        std::vector<Segment> segments;
        std::map<std::string, Endpoint, std::less<>> methods;
    };

    Endpoint& slot(std::string_view method, std::string_view path_template);
    static std::vector<Segment> parse_template(std::string_view path_template);
    static bool fits(const Segment& segment, std::string_view text);

    std::vector<std::unique_ptr<Route>> routes_;
};

} // namespace berth::http
