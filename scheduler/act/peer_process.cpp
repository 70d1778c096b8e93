// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/peer_process.h"

#include "base/log.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <cerrno>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>

namespace berth {

std::shared_ptr<PeerProcess> PeerProcess::watch(boost::asio::io_context& context, int pid,
                                                std::function<void()> on_end) {
    auto peer = std::make_shared<PeerProcess>();
    auto ended = [weak = std::weak_ptr(peer), on_end = std::move(on_end)] {
        if (auto self = weak.lock()) {
            self->ended_ = true;
            on_end();
        }
    };
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd && errno == ESRCH && pid > 0) {
        boost::asio::post(context, std::move(ended));
        return peer;
    }
    if (!pidfd) {
        log::warn("process {} cannot be watched ({}): its end is its session's", pid,
                  std::strerror(errno));
        return nullptr;
    }
    auto watch = FdWatch::take(context, std::move(pidfd), std::move(ended));
    if (!watch) {
        log::warn("process {}: {}: its end is its session's", pid, watch.error().message);
        return nullptr;
    }
    peer->watch_ = std::move(*watch);
    return peer;
}

} // namespace berth
