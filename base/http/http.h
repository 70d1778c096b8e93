// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/packet_socket.h"
#include "base/result.h"

#include <boost/json/fwd.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// HTTP/1.1 messages as plain values, for the server, the client and the handlers. No Beast here.
namespace berth::http {

class KeptConnection;

// Header fields in the order they were added. Names compare without regard to case.
class Headers {
  public:
    using Field = std::pair<std::string, std::string>;

    Headers() = default;
    Headers(std::initializer_list<Field> fields) : fields_(fields) {}

    // Replaces every field of that name.
    void set(std::string_view name, std::string_view text);
    void add(std::string_view name, std::string_view text);
    // The first one's text; nullptr when there is none.
    const std::string* find(std::string_view name) const;
    const std::vector<Field>& fields() const { return fields_; }

  private:
    std::vector<Field> fields_;
};

// The other end of the connection while a handler works on its request. Lives on the io thread;
// handlers may keep it, also after their request has ended (then closed() no longer changes).
class Peer {
  public:
    virtual ~Peer() = default;
    // True once the peer has closed its side or the server stops: nobody waits for the answer.
    virtual bool closed() const = 0;
    // Calls `callback` once when that happens, at once if it has happened already. Callbacks are
    // dropped, not called, when the handler returns: they may refer to the handler's locals.
    virtual void on_closed(std::function<void()> callback) = 0;
};

struct Request {
    std::string method;                        // upper case: "GET"
    std::string target;                        // as sent: "/v1/events?since=4"
    std::string path;                          // the target before '?', still percent-encoded
    std::map<std::string, std::string> query;  // decoded; of equal names the last
    std::map<std::string, std::string> params; // what the path template's {names} matched, decoded
    Headers headers;
    std::string body;
    std::optional<PeerCredentials> credentials; // Unix sockets only
    std::string address;                        // TCP only: "127.0.0.1:40312"
    std::shared_ptr<Peer> peer;                 // never null within a handler
    // What a successor of this process would go on with (keeping.h); null: the connection is not
    // kept. Streaming handlers that note nothing in it are cut when the process ends.
    std::shared_ptr<KeptConnection> kept;
};

struct Response {
    int status = 200;
    std::string content_type = "application/json";
    Headers headers;
    std::string body;
};

Response json_response(const boost::json::value& body, int status = 200);
Response text_response(std::string body, int status = 200,
                       std::string content_type = "text/plain; charset=utf-8");
// {code, reason, message} with the status of http_status(error.code).
Response error_response(const Error& error);
Response error_response(const Error& error, int status);

// The error that a reply of status 400 or more stands for: its JSON body if it has one, else made
// from the status.
Error error_from(const Response& response);
// The body of a 2xx reply as JSON; any other status is its error.
Result<boost::json::value> json_from(const Response& response);

// "Not Found".
std::string_view reason_phrase(int status);

// %41 -> A. '+' stays unless `plus_is_space` (query strings). InvalidArgument on a broken escape
// and on a zero byte.
Result<std::string> percent_decode(std::string_view text, bool plus_is_space = false);
// Everything but letters, digits and "-._~" is escaped: fit for one path segment or query value.
std::string percent_encode(std::string_view text);
Result<std::map<std::string, std::string>> parse_query(std::string_view query);

} // namespace berth::http
