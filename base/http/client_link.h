// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

// Inside base/http only: the client's connection.
namespace berth::http {

// A limit of zero is none.
class Timeout {
  public:
    explicit Timeout(std::chrono::milliseconds limit) : limit_(limit) { restart(); }
    void restart() { until_ = std::chrono::steady_clock::now() + limit_; }
    Status wait(int fd, short events) const; // as for poll(2)

  private:
    std::chrono::milliseconds limit_;
    std::chrono::steady_clock::time_point until_;
};

// Blocks, up to the timeout that each call is given. One thread at a time.
class Link {
  public:
    // Of https the greeting too: the peer's certificate is of that host, and its root one of
    // `ca_file`'s, or (empty) of the system's.
    static Result<Link> connect(const std::string& endpoint, const std::string& ca_file,
                                const Timeout& timeout);
    Link(Link&&) noexcept;
    Link& operator=(Link&&) noexcept;
    ~Link();

    const std::string& host() const { return host_; } // for the header of that name
    // A peer that no longer reads is no error: an early refusal may lie in the socket.
    Status send(std::string_view bytes, const Timeout& timeout);
    // 0: the end.
    Result<size_t> receive(char* into, size_t size, const Timeout& timeout);

  private:
    struct Tls;
    Link();
    Status greet(const std::string& name, const std::string& ca_file, const Timeout& timeout);
    template <typename Step>
    Result<int> advance(Step step, const Timeout& timeout);
    Error tls_error(std::string_view doing) const;

    UniqueFd fd_;
    std::string host_;
    std::unique_ptr<Tls> tls_;
};

} // namespace berth::http
