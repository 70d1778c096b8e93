// SPDX-License-Identifier: Apache-2.0
// Goal: whatever bytes a peer sends, the connection ends, and what it answered is HTTP.
// Method: the input, and the input behind a well-formed start, are written into a real connection
// by a pair of sockets, in two pieces.
#include "base/http/connection.h"
#include "base/http/task_group.h"

#include <boost/asio/io_context.hpp>

#include <cstdlib>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace berth::http;

Router make_router() {
    Router router;
    auto echo = [](Request request) -> boost::asio::awaitable<Response> {
        co_return text_response(request.body);
    };
    router.add("GET", "/a/{name}", echo);
    router.add("POST", "/a/{name}:verb", echo);
    return router;
}

void require(bool holds) {
    if (!holds)
        std::abort();
}

void exchange(std::string_view bytes) {
    boost::asio::io_context context;
    int ends[2] = {-1, -1};
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    berth::UniqueFd peer(ends[0]);
    Socket socket(context, boost::asio::generic::stream_protocol(AF_UNIX, 0), ends[1]);
    ServerLimits limits;
    limits.body_bytes_max = 1024;
    limits.header_bytes_max = 1024;
    auto setting = std::make_shared<Connection::Setting>(Connection::Setting{
        std::make_shared<const Router>(make_router()), limits, Turnstile(context, 8), nullptr});
    auto connection =
        std::make_shared<Connection>(std::move(socket), nullptr, setting, RemoteEnd{});
    TaskGroup tasks(context);
    auto serve = [](std::shared_ptr<Connection> of) -> boost::asio::awaitable<void> {
        co_await of->serve();
    };
    tasks.start("fuzzed", serve(connection));
    std::string_view first = bytes.substr(0, bytes.size() / 2);
    for (std::string_view piece : {first, bytes.substr(first.size())}) {
        (void)!::send(peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
        context.poll();
    }
    ::shutdown(peer.get(), SHUT_WR);
    context.run(); // comes to its end: nothing waits for a peer that has left
    require(tasks.running() == 0);
    std::string answer(size_t{64} << 10, '\0');
    ssize_t got = ::recv(peer.get(), answer.data(), answer.size(), 0);
    require(got <= 0 || answer.starts_with("HTTP/1.1 "));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
    std::string_view input(reinterpret_cast<const char*>(data), size);
    exchange(input);
    exchange(std::string("POST /a/b:verb HTTP/1.1\r\nHost: x\r\n").append(input));
    return 0;
}
