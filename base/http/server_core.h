// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/descriptors.h"
#include "base/http/connection.h"
#include "base/http/server.h"
#include "base/http/task_group.h"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace berth::http {

namespace asio = boost::asio;

using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

// What a Server is made of; inside base/http only. Its coroutines keep it alive.
class Server::Core : public std::enable_shared_from_this<Server::Core> {
  public:
    Core(asio::io_context& context, Router router, ServerLimits limits);
    Status listen(UniqueFd fd, int family, std::shared_ptr<asio::ssl::context> tls = {},
                  bool waits_when_full = false);
    Status take_over(UniqueFd fd, int family, std::shared_ptr<Keeping> keeping);
    void leave(Leave what);
    size_t unfinished() const;
    size_t answering() const;
    void stop();
    size_t connections() const { return connection_count_; }
    void remember_path(const std::string& path) { unix_paths_.push_back(path); }

  private:
    struct Listener {
        Listener(Acceptor of, int of_family, std::shared_ptr<asio::ssl::context> with, bool waits)
            : acceptor(std::move(of)), family(of_family), tls(std::move(with)),
              waits_when_full(waits) {}
        Acceptor acceptor;
        int family;
        std::shared_ptr<asio::ssl::context> tls;
        bool waits_when_full;
        bool is_kept() const { return family != AF_UNIX && !tls; }
    };

    void close_listeners();
    std::vector<std::shared_ptr<Connection>> connections_now() const;
    void go_on(Keeping::TakenOver one);

    static asio::awaitable<void> accept(std::shared_ptr<Core> self,
                                        std::shared_ptr<Listener> listener);
    bool is_full() const { return open_.size() >= setting_->limits.connections_max; }

    // Somebody waits in the queue, and there is room. False: nothing is accepted any more.
    static asio::awaitable<bool> somebody_to_take_in(std::shared_ptr<Core> self,
                                                     std::shared_ptr<Listener> listener);
    void end_longest_idle();
    void take_in(Socket socket, const Listener& listener);
    void open(Socket socket, int family, std::shared_ptr<asio::ssl::context> tls,
              std::shared_ptr<KeptConnection> kept, bool is_new);

    // What a connection counts towards, for as long as it is open.
    class Counted {
      public:
        Counted(std::shared_ptr<Core> core, const Connection* connection, std::string peer);
        Counted(const Counted&) = delete;
        Counted& operator=(const Counted&) = delete;
        ~Counted();
        size_t of_peer() const { return core_->of_peer_.at(peer_); }

      private:
        std::shared_ptr<Core> core_;
        const Connection* connection_;
        std::string peer_;
    };

    static asio::awaitable<void> serve(std::shared_ptr<Core> self,
                                       std::shared_ptr<Connection> connection, std::string peer,
                                       int fd, bool is_new);
    void tell_refused(const Error& why);
    // Whom the queue holds, into the journal too. False: for want of descriptors; the ordinary way
    // tells why.
    bool accept_kept(Listener& listener);
    // False: nobody could be told.
    bool answer_without_descriptors(Acceptor& acceptor, int error_number);

    asio::io_context& context_;
    std::shared_ptr<Connection::Setting> setting_;
    SpareDescriptor spare_;
    TaskGroup tasks_;
    asio::steady_timer has_room_;
    std::list<std::shared_ptr<Listener>> listeners_;
    std::unordered_map<const Connection*, std::weak_ptr<Connection>> open_;
    std::unordered_map<std::string, size_t> of_peer_;
    std::vector<std::string> unix_paths_;
    size_t connection_count_ = 0;
    uint64_t refused_ = 0; // since the last line about it
    std::chrono::steady_clock::time_point told_{};
};

} // namespace berth::http
