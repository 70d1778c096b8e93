// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <boost/asio/posix/stream_descriptor.hpp>

#include <functional>
#include <memory>

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
class FdWatch {
  public:
    static Result<FdWatch> open(boost::asio::io_context& context, int fd,
                                std::function<void()> readable) {
        BERTH_ASSIGN(UniqueFd own, duplicate_of(fd));
        return take(context, std::move(own), std::move(readable));
    }
    static FdWatch take(boost::asio::io_context& context, UniqueFd fd,
                        std::function<void()> readable) {
        FdWatch watch;
        watch.descriptor_ =
            std::make_unique<boost::asio::posix::stream_descriptor>(context, fd.release());
        watch.descriptor_->async_wait(
            boost::asio::posix::stream_descriptor::wait_read,
            [readable = std::move(readable)](boost::system::error_code error) {
                if (!error)
                    readable();
            });
        return watch;
    }

  private:
    std::unique_ptr<boost::asio::posix::stream_descriptor> descriptor_;
};

} // namespace berth
