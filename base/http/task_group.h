// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/awaitable.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}

namespace berth::http {

// The one way to start a coroutine: each task is counted and named, can be cancelled, and an
// exception that leaves it is logged with its name (operation_aborted is not: that is how a
// cancelled one ends). To be used on the io_context's one thread, which must outlive it; dropping
// the group cancels what still runs.
class TaskGroup {
  public:
    explicit TaskGroup(boost::asio::io_context& context);
    TaskGroup(const TaskGroup&) = delete;
    TaskGroup& operator=(const TaskGroup&) = delete;
    ~TaskGroup(); // close()

    // False, and nothing is started, after close().
    bool start(std::string name, boost::asio::awaitable<void> task);
    // Refuses new tasks and cancels the running ones: what they await throws operation_aborted.
    // Idempotent.
    void close();
    size_t running() const;
    // Calls back, from the io_context, once nothing runs any more; at most one at a time.
    void on_empty(std::function<void()> callback);

  private:
    struct State;
    std::shared_ptr<State> state_;
};

} // namespace berth::http
