// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/router.h"
#include "scheduler/act/node_actor.h"
#include "scheduler/act/policy_book.h"
#include "scheduler/wire/session_server.h"

#include <optional>
#include <string>

namespace berth {

// The REST interface: each route as a coroutine on the decision thread. Reads look at the state;
// changes become events, and answer 202 with the operation they began.
//
// Thread rule: the decision thread. All that it is given outlives it, and it outlives the server
// that has its router.
class AdminApi {
  public:
    struct Parts {
        NodeContext& context;
        NodeActor& actor;
        Store& store;
        PolicyBook& policies;
        PeerPolicy peers;
        std::string version;
        std::string tcp_token; // of TCP peers; empty: TCP is refused
        int64_t started_ms = 0;
    };
    explicit AdminApi(Parts parts) : parts_(std::move(parts)) {}
    AdminApi(const AdminApi&) = delete;
    AdminApi& operator=(const AdminApi&) = delete;

    http::Router routes();
    void set_ready(bool ready) { ready_ = ready; }

  private:
    // Who asks is checked before any handler sees the request.
    void get(http::Router& router, const char* path, http::Handler handler);
    void change(http::Router& router, const char* method, const char* path, http::Handler handler);
    Status allowed(const http::Request& request) const;

    void add_node_routes(http::Router& router);
    void add_list_routes(http::Router& router);
    void add_operation_routes(http::Router& router);
    void add_weight_routes(http::Router& router);
    void add_event_routes(http::Router& router);
    void add_policy_routes(http::Router& router);

    boost::asio::awaitable<http::Response> node(http::Request request);
    boost::asio::awaitable<http::Response> devices(http::Request request);
    boost::asio::awaitable<http::Response> doctor(http::Request request);
    boost::asio::awaitable<http::Response> preempt(http::Request request);
    boost::asio::awaitable<http::Response> resume(http::Request request);
    boost::asio::awaitable<http::Response> load(http::Request request);
    boost::asio::awaitable<void> look_for_changes(node::LoadRequested wanted);
    boost::asio::awaitable<http::Response> pin(http::Request request, bool pinned);
    boost::asio::awaitable<http::Response> evict(http::Request request);
    boost::asio::awaitable<http::Response> verify(http::Request request);
    boost::asio::awaitable<http::Response> operation(http::Request request);
    boost::asio::awaitable<void> events(http::Request request, http::StreamPtr stream);
    boost::asio::awaitable<Result<std::vector<EventRecord>>> stored_events(int64_t since);
    boost::asio::awaitable<http::Response> decisions(http::Request request);
    boost::asio::awaitable<http::Response> put_policy(http::Request request);

    // Begins an operation and posts its event; the reply is 202, or 200 for a request id that is
    // known already.
    template <typename Event>
    boost::asio::awaitable<http::Response> begin(std::string request_id, Event event);
    boost::asio::awaitable<void> recorded();
    http::Response operation_reply(const node::OperationId& id, int status) const;

    Parts parts_;
    bool ready_ = false;
};

} // namespace berth
