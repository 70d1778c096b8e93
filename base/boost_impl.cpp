// SPDX-License-Identifier: Apache-2.0
// The one place where Asio and Beast are compiled (BOOST_ASIO_SEPARATE_COMPILATION).
#include <sys/timerfd.h>

namespace {

// Asio's reactor looks at its timers when its timerfd comes up among what is ready, and epoll tells
// that in order: behind ten thousand sockets that have become readable at once, 128 a turn, every
// timer would be late by all of them. Without a timerfd it looks in every turn, to the millisecond.
int no_timerfd(int, int) {
    return -1;
}

} // namespace

#define timerfd_create no_timerfd
#include <boost/asio/impl/src.hpp>
#undef timerfd_create
#include <boost/beast/src.hpp>
