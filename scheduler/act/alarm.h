// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <memory>
#include <utility>

namespace berth {

// One deed, later. Once it is cancelled, set anew or dropped, the deed before is not done, also
// when its time has come and its turn has not: a timer alone does not see to that. Thread rule: the
// io_context's one thread.
class Alarm {
  public:
    template <typename Deed>
    void set(boost::asio::io_context& context, std::chrono::steady_clock::duration delay,
             Deed deed) {
        waits_ = std::make_shared<Waits>(context, delay);
        waits_->timer.async_wait([weak = std::weak_ptr(waits_),
                                  deed = std::move(deed)](boost::system::error_code error) mutable {
            auto waits = weak.lock();
            if (error || !waits)
                return;
            waits->over = true;
            waits.reset(); // the deed may set this again
            deed();
        });
    }
    void cancel() { waits_.reset(); }
    bool is_set() const { return waits_ && !waits_->over; }

  private:
    struct Waits {
        Waits(boost::asio::io_context& context, std::chrono::steady_clock::duration delay)
            : timer(context, delay) {}
        boost::asio::steady_timer timer;
        bool over = false;
    };
    std::shared_ptr<Waits> waits_;
};

} // namespace berth
