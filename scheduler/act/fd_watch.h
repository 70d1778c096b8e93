// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <boost/asio/posix/stream_descriptor.hpp>

#include <functional>
#include <memory>
#include <poll.h>

namespace berth {

// A second descriptor of what `fd` refers to; `fd` stays its owner's.
inline Result<UniqueFd> duplicate_of(int fd) {
    UniqueFd borrowed(fd);
    auto copy = borrowed.duplicate();
    (void)borrowed.release();
    return copy;
}

// Calls back once when a descriptor becomes readable (a pidfd: when its process has ended).
// Dropping it cancels. Thread rule: the io_context's one thread.
//
// Asio may end a wait for an event of another descriptor that was closed in the same turn, since it
// uses its records of them again: what is said to be readable is looked at before it is believed.
class FdWatch {
  public:
    static Result<FdWatch> open(boost::asio::io_context& context, int fd,
                                std::function<void()> readable) {
        BERTH_ASSIGN(UniqueFd own, duplicate_of(fd));
        return take(context, std::move(own), std::move(readable));
    }
    static Result<FdWatch> take(boost::asio::io_context& context, UniqueFd fd,
                                std::function<void()> readable) {
        FdWatch watch;
        watch.descriptor_ = std::make_shared<Descriptor>(context);
        boost::system::error_code error;
        watch.descriptor_->assign(fd.get(), error);
        if (error)
            return fail_errno("watching a descriptor", error.value());
        (void)fd.release();
        wait(watch.descriptor_, std::move(readable));
        return watch;
    }

  private:
    using Descriptor = boost::asio::posix::stream_descriptor;

    static void wait(const std::shared_ptr<Descriptor>& on, std::function<void()> readable) {
        on->async_wait(Descriptor::wait_read,
                       [weak = std::weak_ptr(on),
                        readable = std::move(readable)](boost::system::error_code error) mutable {
                           auto descriptor = weak.lock();
                           if (error || !descriptor)
                               return;
                           pollfd look{descriptor->native_handle(), POLLIN, 0};
                           if (::poll(&look, 1, 0) == 0)
                               return wait(descriptor, std::move(readable));
                           descriptor.reset(); // the callback may drop it
                           readable();
                       });
    }

    std::shared_ptr<Descriptor> descriptor_;
};

} // namespace berth
