// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/http.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace berth::test {

// A node's admin socket with canned answers, on a thread of its own, in a folder of its own. Add
// every route, then start(). Answers run on its thread, one at a time.
class FakeNode {
  public:
    using Answer = std::function<http::Response(const http::Request&)>;
    struct Seen {
        std::string method, target, body;
    };

    FakeNode();
    FakeNode(const FakeNode&) = delete;
    FakeNode& operator=(const FakeNode&) = delete;
    ~FakeNode();

    void on(const std::string& method, const std::string& path, Answer answer);
    void on(const std::string& method, const std::string& path, const std::string& json_body,
            int status = 200);
    void start();
    std::string socket() const;
    const std::string& folder() const;
    std::vector<Seen> seen() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

struct Ran {
    int exit_code = -1;
    std::string out, err;
};
// Runs `berth ARGUMENTS` (shell words) with BERTH_ADMIN set to `admin`.
Ran run_berth(const std::string& admin, const std::string& arguments,
              const std::string& standard_input = {});
// The same with stderr on a terminal; `environment` is "NAME=VALUE " words. What the terminal got
// is `err`.
Ran run_on_terminal(const std::string& admin, const std::string& arguments,
                    const std::string& environment = {});

} // namespace berth::test
