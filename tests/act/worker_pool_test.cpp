// SPDX-License-Identifier: Apache-2.0
// Goal: work that fails in whatever way is told as a failure, no kind of work waits for another
// kind, and what was put off and cancelled is not done. Method: real threads that are held until
// the test lets them go; alarms that are due in the same turn.
#include "scheduler/act/alarm.h"
#include "scheduler/act/workers.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

namespace berth {
namespace {

using namespace std::chrono_literals;

struct Found {
    std::string words;
    static Found of_failure(Error error) { return {std::move(error.message)}; }
};

class WorkerPoolTest : public testing::Test {
  protected:
    bool until(const std::function<bool()>& reached) {
        const auto end = std::chrono::steady_clock::now() + 60s;
        while (!reached() && std::chrono::steady_clock::now() < end)
            io_.run_one_for(10ms);
        return reached();
    }
    template <typename Value>
    Value failed() {
        std::optional<Value> told;
        WorkerPool pool(io_, 1);
        pool.run([]() -> Value { throw std::runtime_error("it broke"); },
                 [&told](Value value) { told.emplace(std::move(value)); });
        EXPECT_TRUE(until([&] { return told.has_value(); }));
        return std::move(told.value());
    }

    boost::asio::io_context io_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
        io_.get_executor()};
};

TEST_F(WorkerPoolTest, WorkThatEndsWithAnExceptionIsToldAsAFailure) {
    EXPECT_EQ(failed<Status>().error().reason, "WorkFailed");
    EXPECT_NE(failed<Result<int>>().error().message.find("it broke"), std::string::npos);
    EXPECT_EQ(failed<std::optional<int>>(), std::nullopt);
    EXPECT_NE(failed<std::string>().find("it broke"), std::string::npos);
    EXPECT_NE(failed<Found>().words.find("it broke"), std::string::npos);
}

TEST_F(WorkerPoolTest, NoKindOfWorkWaitsForAnother) {
    Workers workers(io_);
    const std::vector<WorkerPool*> all = {&workers.memory, &workers.processes, &workers.checkpoints,
                                          &workers.images, &workers.documents, &workers.questions,
                                          &workers.driver};
    for (WorkerPool* one : all) {
        std::promise<void> go;
        const std::shared_future<void> gone = go.get_future().share();
        int held = 0;
        for (WorkerPool* other : all)
            for (int n = 0; n < 4 && other != one; ++n) // more than any has threads
                other->run(
                    [gone] {
                        gone.wait();
                        return std::string();
                    },
                    [&held](const std::string&) { ++held; });
        bool done = false;
        one->run([] { return std::string(); }, [&done](const std::string&) { done = true; });
        EXPECT_TRUE(until([&] { return done; }));
        EXPECT_EQ(held, 0);
        go.set_value();
        EXPECT_TRUE(until([&] { return held == 4 * 6; }));
    }
}

TEST_F(WorkerPoolTest, AnAlarmThatIsCancelledAsItsTimeHasComeDoesNothing) {
    Alarm first, second;
    int done = 0;
    first.set(io_, 0ms, [&] {
        ++done;
        second.cancel();
    });
    second.set(io_, 0ms, [&] {
        ++done;
        first.cancel();
    });
    std::this_thread::sleep_for(5ms); // both are due when the io_context first looks
    EXPECT_TRUE(until([&] { return done > 0; }));
    io_.poll();
    EXPECT_EQ(done, 1);
}

TEST_F(WorkerPoolTest, AnAlarmMaySetItselfAgainAndIsSetUntilItIsDue) {
    Alarm alarm;
    int done = 0;
    std::function<void()> deed = [&] {
        EXPECT_FALSE(alarm.is_set());
        if (++done < 3)
            alarm.set(io_, 0ms, deed);
    };
    alarm.set(io_, 0ms, deed);
    EXPECT_TRUE(alarm.is_set());
    EXPECT_TRUE(until([&] { return done == 3; }));
    EXPECT_FALSE(alarm.is_set());
}

} // namespace
} // namespace berth
