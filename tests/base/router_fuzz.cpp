// SPDX-License-Identifier: Apache-2.0
// Any method, path and query: no crash, and what the router says of them holds together.
#include "base/http/router.h"

#include <cstdlib>

namespace {

using berth::http::Request;
using berth::http::Response;
using berth::http::Router;

Router make_router() {
    auto nothing = [](Request) -> boost::asio::awaitable<Response> { co_return Response{}; };
    Router router;
    router.add("GET", "/", nothing);
    router.add("GET", "/v1/instances", nothing);
    router.add("GET", "/v1/instances/{name}", nothing);
    router.add("POST", "/v1/instances/{name}:preempt", nothing);
    router.add("POST", "/v1/weights:load", nothing);
    router.add("GET", "/v1/{kind}/{name}", nothing);
    router.add("GET", "/v1/{kind}/{name}:a/{more}", nothing);
    return router;
}

void require(bool holds) {
    if (!holds)
        std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
    static const Router router = make_router();
    std::string_view input(reinterpret_cast<const char*>(data), size);
    std::string_view path = input.substr(0, input.find('?'));
    for (const char* method : {"GET", "POST", "HEAD"}) {
        Router::Match match = router.match(method, path);
        bool found = match.outcome == Router::Outcome::kFound;
        require(found == (match.endpoint != nullptr));
        require((match.outcome == Router::Outcome::kMethodNotAllowed) == !match.allow.empty());
        require(match.outcome != Router::Outcome::kBadPath || !match.error.message.empty());
        if (found)
            for (const auto& [name, text] : match.params)
                require(!text.empty() && text.find('\0') == std::string::npos);
    }
    if (auto decoded = berth::http::percent_decode(input)) {
        auto again = berth::http::percent_decode(berth::http::percent_encode(*decoded));
        require(again && *again == *decoded);
    }
    if (path.size() < input.size())
        (void)berth::http::parse_query(input.substr(path.size() + 1));
    return 0;
}
