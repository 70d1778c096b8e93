// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/awaitable.hpp>

#include <cstddef>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace berth::http {

// Lets so many pass in one turn of the loop, the rest in the following ones, first come first
// served: what else waits for the loop waits for a few requests at most, however many peers ask at
// once. On the io thread alone; the io_context must outlive it.
class Turnstile {
  public:
    Turnstile(boost::asio::io_context& context, size_t a_turn);
    // `weight`: what a passage counts for. Cancellation of the coroutine ends the wait.
    boost::asio::awaitable<void> pass(size_t weight = 1);

  private:
    struct State;
    std::shared_ptr<State> state_;
};

} // namespace berth::http
