// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/router.h"
#include "base/http/task_group.h"
#include "scheduler/act/node_actor.h"
#include "scheduler/act/policy_book.h"
#include "scheduler/admin/access.h"
#include "scheduler/admin/audit.h"
#include "scheduler/admin/driver_bytes.h"
#include "scheduler/admin/preconditions.h"

#include <memory>
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
        Access& access;
        std::string version;
        int64_t started_ms = 0;
    };
    explicit AdminApi(Parts parts);
    AdminApi(const AdminApi&) = delete;
    AdminApi& operator=(const AdminApi&) = delete;

    http::Router routes();
    void set_ready(bool ready) { ready_ = ready; }

  private:
    // Who asks is checked before any handler sees the request. A look takes the role viewer; a
    // change names the role that it takes, and is audited.
    void get(http::Router& router, const char* path, http::Handler handler);
    void look(http::Router& router, const char* method, const char* path, http::Handler handler);
    void change(http::Router& router, policies::Role role, const char* method, const char* path,
                http::Handler handler);
    // Nothing: the caller may. Else what to answer.
    std::optional<http::Response> refused(policies::Role role, const http::Request& request);
    boost::asio::awaitable<http::Response> audited(std::shared_ptr<const http::Handler> handler,
                                                   http::Request request);

    void add_node_routes(http::Router& router);
    void add_list_routes(http::Router& router);
    void add_operation_routes(http::Router& router);
    void add_operator_routes(http::Router& router);
    void add_weight_routes(http::Router& router);
    void add_event_routes(http::Router& router);
    void add_policy_routes(http::Router& router);
    void add_instance_routes(http::Router& router);
    void add_rollout_routes(http::Router& router);

    boost::asio::awaitable<http::Response> node(http::Request request);
    boost::asio::awaitable<http::Response> devices(http::Request request);
    boost::asio::awaitable<http::Response> doctor(http::Request request);
    boost::asio::awaitable<http::Response> preempt(http::Request request);
    boost::asio::awaitable<http::Response> resume(http::Request request);
    // Begins what a read body asks for in common.
    template <typename Event, typename Body>
    boost::asio::awaitable<http::Response> ask(Event event, Result<Body> body);
    template <typename Event, typename Body>
    boost::asio::awaitable<http::Response> ask_of_instance(Event event, http::Request request,
                                                           Result<Body> body);
    boost::asio::awaitable<http::Response> hold(http::Request request, bool held);
    boost::asio::awaitable<http::Response> drain(http::Request request);
    boost::asio::awaitable<http::Response> promote(http::Request request);
    boost::asio::awaitable<http::Response> cordon(http::Request request, bool cordoned);
    boost::asio::awaitable<http::Response> drain_device(http::Request request);
    boost::asio::awaitable<http::Response> plan(http::Request request);
    boost::asio::awaitable<http::Response> load(http::Request request);
    boost::asio::awaitable<void> look_for_changes(node::LoadRequested wanted);
    boost::asio::awaitable<http::Response> pin(http::Request request, bool pinned);
    boost::asio::awaitable<http::Response> evict(http::Request request);
    boost::asio::awaitable<http::Response> verify(http::Request request);
    boost::asio::awaitable<http::Response> operation(http::Request request);
    boost::asio::awaitable<http::Response> operations(http::Request request);
    boost::asio::awaitable<void> events(http::Request request, http::StreamPtr stream);
    boost::asio::awaitable<Result<std::vector<EventRecord>>> stored_events(int64_t since);
    boost::asio::awaitable<http::Response> decisions(http::Request request);
    boost::asio::awaitable<http::Response> decision(http::Request request);
    boost::asio::awaitable<http::Response> put_policy(http::Request request);
    boost::asio::awaitable<http::Response> validate_policy(http::Request request);
    boost::asio::awaitable<http::Response> diff_policy(http::Request request);
    boost::asio::awaitable<http::Response> get_instance(http::Request request);
    boost::asio::awaitable<http::Response> put_instance(http::Request request);
    boost::asio::awaitable<http::Response> delete_instance(http::Request request);
    boost::asio::awaitable<http::Response> roll_out(http::Request request);
    boost::asio::awaitable<http::Response> rollout_asked(http::Request request,
                                                         node::OperatorRollout::Verb verb);
    boost::asio::awaitable<http::Response> get_rollout(http::Request request);
    boost::asio::awaitable<http::Response> rollouts(http::Request request);
    boost::asio::awaitable<void> adopt(policies::InstanceSpec spec);
    // The tag of an instance's document; "": there is none.
    std::string tag_of_instance(const std::string& name) const;
    boost::asio::awaitable<Status> commit_documents(PolicyBook::Change change, std::string words);
    boost::asio::awaitable<Status> stored(std::vector<StoreWrite> writes);

    // Begins an operation and posts its event; the reply is 202, or 200 for a request id that is
    // known already.
    template <typename Event>
    boost::asio::awaitable<http::Response> begin(std::string request_id, Event event);
    // What to answer where that request id began an operation that only the store knows by now.
    boost::asio::awaitable<std::optional<http::Response>> begun_earlier(std::string request_id);
    boost::asio::awaitable<void> recorded();
    Status recordable() const;
    http::Response operation_reply(const node::OperationId& id, int status) const;
    http::Response rehearsed(const std::string& request_id, node::Operation operation);

    Parts parts_;
    Audit audit_;
    DriverFigures driver_figures_{parts_.context, parts_.actor.workers().driver};
    bool ready_ = false;
    DoneRequests done_requests_; // of changes of documents
    class PolicyTurn;            // while one lives, policy_busy_
    bool policy_busy_ = false;
    Signal policy_free_{parts_.context.io};
    http::TaskGroup tasks_{parts_.context.io}; // the last: what runs uses all of this
};

} // namespace berth
