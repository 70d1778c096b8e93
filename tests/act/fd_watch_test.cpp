// SPDX-License-Identifier: Apache-2.0
// Goal: a watch calls back for its own descriptor alone, also where another one goes in the same
// turn and its record in the reactor is used again. Method: pipes, of which two have something at
// once; whoever is told first drops the other and watches a third, which has nothing.
#include "scheduler/act/fd_watch.h"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <optional>
#include <unistd.h>

namespace berth {
namespace {

struct Pipe {
    Pipe() {
        int ends[2] = {-1, -1};
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
        out.reset(ends[0]);
        in.reset(ends[1]);
    }
    void fill() const { EXPECT_EQ(::write(in.get(), "x", 1), 1); }
    UniqueFd out, in;
};

TEST(FdWatch, IsNotEndedByTheEventOfOneThatWentInTheSameTurn) {
    for (int round = 0; round < 50; ++round) {
        boost::asio::io_context io;
        const Pipe first, second, silent;
        std::optional<FdWatch> watches[2], watch;
        int told = 0, called = 0;
        const auto replace = [&](int other) {
            ++told;
            watches[other].reset();
            if (!watch)
                watch = *FdWatch::open(io, silent.out.get(), [&] { ++called; });
        };
        watches[0] = *FdWatch::open(io, first.out.get(), [&] { replace(1); });
        watches[1] = *FdWatch::open(io, second.out.get(), [&] { replace(0); });
        io.poll(); // both wait now
        io.restart();
        first.fill();
        second.fill();
        for (int turn = 0; turn < 5; ++turn) {
            io.poll();
            io.restart();
        }
        EXPECT_GE(told, 1);
        EXPECT_EQ(called, 0) << "nothing was there to read, round " << round;
        silent.fill();
        io.run_for(std::chrono::seconds(5));
        EXPECT_EQ(called, 1);
    }
}

TEST(FdWatch, OneThatIsDroppedIsNeverCalled) {
    boost::asio::io_context io;
    const Pipe pipe;
    int called = 0;
    {
        const FdWatch watch = *FdWatch::open(io, pipe.out.get(), [&] { ++called; });
        io.poll();
        io.restart();
        pipe.fill();
    }
    io.run_for(std::chrono::milliseconds(50));
    EXPECT_EQ(called, 0);
}

} // namespace
} // namespace berth
