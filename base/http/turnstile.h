// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstddef>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace berth::http {

// Lets a few pass in one turn of the loop, the rest in the following ones, first come first served:
// what else waits for the loop waits for a few requests at most, however many peers ask at once.
// How many a turn follows from how long the last turn took: it is to be kTurn at most, and a turn
// has one at least. On the io thread alone; the io_context must outlive it.
class Turnstile {
  public:
    static constexpr std::chrono::microseconds kTurn{1000};
    Turnstile(boost::asio::io_context& context, size_t a_turn_max);
    // `weight`: what a passage counts for. Cancellation of the coroutine ends the wait.
    boost::asio::awaitable<void> pass(size_t weight = 1);

  private:
    struct State;
    std::shared_ptr<State> state_;
};

} // namespace berth::http
