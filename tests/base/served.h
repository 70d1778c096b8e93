// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/client.h"
#include "base/http/server.h"

#include <boost/asio/io_context.hpp>

#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace berth::http {

// A Server on a thread of its own, on a Unix socket in a new folder and on a TCP port.
class Served {
  public:
    explicit Served(Router router, ServerLimits limits = {});
    Served(const Served&) = delete;
    Served& operator=(const Served&) = delete;
    ~Served(); // stops; the test fails if the thread does not come to its end

    std::string unix_endpoint() const { return "unix:" + path_; }
    std::string tcp_endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
    const std::string& path() const { return path_; }
    boost::asio::io_context& context() { return context_; }
    Server& server() { return *server_; }
    // Runs it on the io thread, and waits for it.
    void on_io_thread(std::function<void()> work);
    size_t connections();
    void stop();

  private:
    std::string folder_;
    std::string path_;
    uint16_t port_ = 0;
    boost::asio::io_context context_;
    std::unique_ptr<Server> server_;
    std::thread thread_;
};

// Sends bytes as they are to a Unix socket and returns all that comes until the peer closes, or
// `milliseconds_max` pass.
std::string raw_exchange(const std::string& path, const std::string& bytes,
                         int milliseconds_max = 5000);
// A connection that a test holds by hand.
UniqueFd raw_connect(const std::string& path);
void raw_send(int fd, const std::string& bytes);
// Reads until `text` has come (true), the peer closes or the time is up.
bool raw_read_until(int fd, const std::string& text, std::string& all, int milliseconds_max = 5000);

bool eventually(const std::function<bool()>& condition, int milliseconds_max = 5000);

} // namespace berth::http
