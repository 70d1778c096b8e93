// SPDX-License-Identifier: Apache-2.0
// Goal: batch sees online's demand at once, sleeps without a poll, and never sleeps on because of
// somebody who is dead. Method: pages in this process, raisers in real ones.
#include "engine_shim/protocol/gate_page.h"

#include "tests/memory/child.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <fcntl.h>
#include <future>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace berth {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::Child;

class Gate : public ::testing::Test {
  protected:
    void SetUp() override {
        auto made = create_gate_page();
        ASSERT_TRUE(made.has_value()) << made.error().message;
        fds_ = std::move(*made);
    }
    GateRaiser raiser(uint32_t slot, int64_t class_value) {
        auto opened = GateRaiser::open(fds_.writable, slot, class_value);
        EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
        return std::move(*opened);
    }
    GateWatcher watcher(int64_t class_value) {
        auto opened = GateWatcher::open(fds_.read_only, class_value);
        EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
        return std::move(*opened);
    }
    GateFds fds_;
};

TEST_F(Gate, ClosesWithDemandAndOpensWithTheLastLower) {
    GateRaiser online = raiser(1, 1000);
    GateWatcher batch = watcher(100);
    EXPECT_FALSE(batch.closed());
    online.raise();
    online.raise();
    EXPECT_TRUE(batch.closed());
    EXPECT_EQ(online.demand(), 2U);
    online.lower();
    EXPECT_TRUE(batch.closed());
    online.lower();
    EXPECT_FALSE(batch.closed());
    online.lower(); // once too often: must not wrap
    EXPECT_EQ(online.demand(), 0U);
    EXPECT_FALSE(batch.closed());
}

TEST_F(Gate, ItsShareIsThePolicysOrTheLeastThatAnyRaiserSpares) {
    GateRaiser online = raiser(1, 1000);
    GateRaiser other = raiser(2, 900);
    GateWatcher batch = watcher(100);
    EXPECT_EQ(batch.share(), 0U);
    ASSERT_TRUE(set_gate_share(fds_, 250).has_value());
    EXPECT_EQ(batch.share(), 250U);
    ASSERT_TRUE(set_gate_share(fds_, 5000).has_value());
    EXPECT_EQ(batch.share(), 1000U);
    ASSERT_TRUE(set_gate_share(fds_, kShareBySlo).has_value());
    online.raise();
    EXPECT_EQ(batch.share(), 0U) << "it has not said that it spares anything";
    online.set_spare(600);
    EXPECT_EQ(batch.share(), 600U);
    other.set_spare(300);
    EXPECT_EQ(batch.share(), 600U) << "the other has no work";
    other.raise();
    EXPECT_EQ(batch.share(), 300U);
    EXPECT_EQ(watcher(950).share(), 600U) << "of those above it";
}

TEST_F(Gate, IsOpenInATurnAndItsShareIsTakenByNobodyElseWhereAllThatRaiseGiveTurns) {
    GateRaiser online = raiser(1, 1000);
    GateRaiser other = raiser(2, 900);
    GateWatcher batch = watcher(100);
    ASSERT_TRUE(set_gate_share(fds_, 250).has_value());
    EXPECT_EQ(online.share_to_give(), 250U);
    online.raise();
    EXPECT_FALSE(online.begin_turn()) << "nobody waits";
    EXPECT_TRUE(batch.closed());
    EXPECT_EQ(batch.share(), 0U) << "it is given";
    other.raise();
    EXPECT_EQ(batch.share(), 250U) << "one gives no turns: it is taken";
    other.lower();
    auto waiting = std::async(std::launch::async, [&] { return batch.wait(20s); });
    do
        ::poll(nullptr, 0, 20); // until it sleeps
    while (!online.begin_turn());
    EXPECT_TRUE(waiting.get());
    EXPECT_FALSE(batch.closed());
    other.raise();
    EXPECT_TRUE(batch.closed()) << "the other's demand is not in the turn";
    other.lower();
    online.end_turn();
    EXPECT_TRUE(batch.closed());
    ASSERT_TRUE(set_gate_share(fds_, kShareBySlo).has_value());
    online.set_spare(600);
    EXPECT_EQ(online.share_to_give(), 600U);
}

TEST_F(Gate, ClosesOnlyForLowerClasses) {
    GateRaiser middle = raiser(3, 500);
    GateWatcher above = watcher(1000);
    GateWatcher equal = watcher(500);
    GateWatcher below = watcher(499);
    GateWatcher negative = watcher(-5);
    middle.raise();
    EXPECT_FALSE(above.closed());
    EXPECT_FALSE(equal.closed());
    EXPECT_TRUE(below.closed());
    EXPECT_TRUE(negative.closed());
}

TEST_F(Gate, StaysClosedUntilEveryRaiserIsDone) {
    GateRaiser first = raiser(0, 1000);
    GateRaiser last = raiser(kGateSlots - 1, 900);
    GateWatcher batch = watcher(100);
    first.raise();
    last.raise();
    first.lower();
    EXPECT_TRUE(batch.closed());
    last.lower();
    EXPECT_FALSE(batch.closed());
}

TEST_F(Gate, SlotBelongsToOneLiveRaiser) {
    auto first = std::make_unique<GateRaiser>(raiser(5, 1000));
    auto second = GateRaiser::open(fds_.writable, 5, 900);
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::kAlreadyExists);
    EXPECT_NE(second.error().message.find(std::to_string(::getpid())), std::string::npos);
    first->raise();
    EXPECT_TRUE(watcher(100).closed());
    first.reset();
    EXPECT_FALSE(watcher(100).closed());
    EXPECT_EQ(raiser(5, 900).demand(), 0U);
    EXPECT_EQ(GateRaiser::open(fds_.writable, kGateSlots, 1).error().code,
              ErrorCode::kInvalidArgument);
}

TEST_F(Gate, MovedRaiserKeepsItsSlotAndDemand) {
    GateRaiser from = raiser(2, 1000);
    from.raise();
    GateRaiser to = std::move(from);
    EXPECT_TRUE(watcher(1).closed());
    EXPECT_FALSE(static_cast<bool>(from)); // NOLINT: what a moved-from one must be
    to = raiser(4, 1000);
    EXPECT_FALSE(watcher(1).closed());
    EXPECT_EQ(raiser(2, 1000).demand(), 0U);
}

TEST_F(Gate, DeadRaisersGateOpensByItself) {
    Child online = Child::start({"raise", "7", "1000"});
    online.send("page", {fds_.writable.get()});
    ASSERT_EQ(online.receive().payload, "raised");
    GateWatcher batch = watcher(100);
    EXPECT_TRUE(batch.closed());
    EXPECT_EQ(GateRaiser::open(fds_.writable, 7, 1).error().code, ErrorCode::kAlreadyExists);

    Clock::time_point killed;
    std::thread killer([&] {
        (void)batch.wait(50ms); // the sleeper below is asleep by then
        killed = Clock::now();
        EXPECT_TRUE(WIFSIGNALED(online.kill()));
    });
    EXPECT_TRUE(batch.wait(20s));
    auto opened = Clock::now();
    killer.join();
    EXPECT_LT(opened - killed, 1s);
    EXPECT_FALSE(batch.closed());
    // The demand that the dead one left does not count for its successor.
    GateRaiser heir = raiser(7, 1000);
    EXPECT_EQ(heir.demand(), 0U);
    EXPECT_FALSE(batch.closed());
    heir.raise();
    EXPECT_TRUE(batch.closed());
}

TEST_F(Gate, SleeperWakesWhenTheGateOpensAndNotBefore) {
    GateRaiser online = raiser(1, 1000);
    GateWatcher batch = watcher(100);
    EXPECT_TRUE(batch.wait(0ns));
    online.raise();
    EXPECT_FALSE(batch.wait(0ns));
    auto start = Clock::now();
    EXPECT_FALSE(batch.wait(150ms));
    EXPECT_GE(Clock::now() - start, 150ms);
    // The lower itself wakes: looking again every 100 ms would take 95 ms here, each time.
    std::vector<Clock::duration> late;
    for (int round = 0; round < 9; ++round) {
        std::atomic<Clock::duration::rep> lowered{0};
        std::thread other([&] {
            GateWatcher pause = watcher(100);
            (void)pause.wait(5ms);
            lowered = Clock::now().time_since_epoch().count();
            online.lower();
        });
        EXPECT_TRUE(batch.wait(20s));
        late.push_back(Clock::now().time_since_epoch() - Clock::duration(lowered.load()));
        EXPECT_NE(lowered.load(), 0);
        other.join();
        online.raise();
    }
    std::sort(late.begin(), late.end());
    EXPECT_GE(late.front(), 0ns);
    EXPECT_LT(late[late.size() / 2], 50ms);
}

TEST_F(Gate, WakeEndsThisWaitOrTheNext) {
    GateRaiser online = raiser(1, 1000);
    online.raise();
    GateWatcher batch = watcher(100);
    batch.wake();
    EXPECT_FALSE(batch.wait(20s)); // returns at once, closed
    auto start = Clock::now();
    EXPECT_FALSE(batch.wait(40ms)); // and only once
    EXPECT_GE(Clock::now() - start, 40ms);
    std::thread other([&] {
        GateWatcher pause = watcher(100);
        (void)pause.wait(30ms);
        batch.wake();
    });
    start = Clock::now();
    EXPECT_FALSE(batch.wait(20s));
    EXPECT_LT(Clock::now() - start, 5s);
    other.join();
}

// Keeps the calling thread on the nth CPU it may use, so that two threads really run side by side.
void stay_on_cpu(int nth) {
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed) || nth-- > 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)::sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

// Raises and lowers race with looks and sleeps: the lower comes before, within and after the
// moment at which the watcher goes to sleep. A lost wake-up shows as a wait that takes the 100 ms
// of the safety net.
TEST_F(Gate, NoWakeUpIsLostInARace) {
    GateRaiser online = raiser(1, 1000);
    GateWatcher batch = watcher(100);
    constexpr int kRounds = 1500;
    constexpr int kSlowMax = 5; // what a loaded machine may do to a thread
    std::atomic<int> raised{0};
    std::atomic<int> seen_open{0};
    std::thread other([&] {
        stay_on_cpu(1);
        for (int round = 1; round <= kRounds; ++round) {
            online.raise();
            raised.store(round);
            if (round % 10 == 0)
                std::this_thread::sleep_for(std::chrono::microseconds(100));
            auto until = Clock::now() + std::chrono::nanoseconds(round * 7 % 6000);
            while (Clock::now() < until)
                continue;
            online.lower();
            while (seen_open.load() < round)
                std::this_thread::yield();
        }
    });
    int slow = 0;
    std::thread sleeper([&] {
        stay_on_cpu(0);
        for (int round = 1; round <= kRounds; ++round) {
            while (raised.load() < round)
                std::this_thread::yield();
            auto start = Clock::now();
            if (slow <= kSlowMax)
                EXPECT_TRUE(batch.wait(20s));
            slow += Clock::now() - start > 90ms ? 1 : 0;
            seen_open.store(round);
        }
    });
    sleeper.join();
    other.join();
    EXPECT_LE(slow, kSlowMax);
}

TEST_F(Gate, ManyThreadsRaiseAndLowerToZero) {
    GateRaiser online = raiser(1, 1000);
    GateWatcher batch = watcher(100);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (int round = 0; round < 2000; ++round) {
                online.raise();
                EXPECT_TRUE(batch.closed());
                online.lower();
            }
        });
    for (std::thread& thread : threads)
        thread.join();
    EXPECT_EQ(online.demand(), 0U);
    EXPECT_FALSE(batch.closed());
}

TEST_F(Gate, RaisersNeedAWritablePageAndWatchersDoNot) {
    EXPECT_TRUE(GateWatcher::open(fds_.read_only, 1).has_value());
    EXPECT_EQ(::mmap(nullptr, kGateBytes, PROT_WRITE, MAP_SHARED, fds_.read_only.get(), 0),
              MAP_FAILED);
    EXPECT_NE(::ftruncate(fds_.writable.get(), 0), 0);
    auto again = adopt_gate_page(std::move(*fds_.writable.duplicate()));
    ASSERT_TRUE(again.has_value()) << again.error().message;
    GateRaiser online = *GateRaiser::open(again->writable, 1, 1000);
    online.raise();
    EXPECT_TRUE(watcher(100).closed());
}

// Kernels before 5.16, and some sandboxes, have no futex_waitv. Last of its suite: what the process
// has learnt stays learnt.
TEST_F(Gate, SleepsAndWakesWithoutFutexWaitv) {
    GateRaiser online = raiser(1, 1000);
    GateWatcher batch = watcher(100);
    std::thread sandboxed([&] {
        sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex_waitv, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        sock_fprog program{sizeof filter / sizeof *filter, filter};
        if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
            return; // no filters here: the rest runs with whatever the kernel has
        online.raise();
        auto start = Clock::now();
        EXPECT_FALSE(batch.wait(60ms));
        EXPECT_GE(Clock::now() - start, 60ms);
        std::thread other([&] {
            (void)watcher(100).wait(30ms);
            batch.wake();
            (void)watcher(100).wait(30ms);
            online.lower();
        });
        start = Clock::now();
        EXPECT_FALSE(batch.wait(20s)) << "wake() ends it";
        EXPECT_TRUE(batch.wait(20s)) << "lower() opens it";
        EXPECT_LT(Clock::now() - start, 10s);
        other.join();
    });
    sandboxed.join();
}

TEST(GatePages, AreRefusedWhenTheyAreNone) {
    UniqueFd small(::memfd_create("berth-gate", MFD_CLOEXEC));
    EXPECT_EQ(GateWatcher::open(small, 1).error().code, ErrorCode::kCorrupt);
    UniqueFd blank(::memfd_create("berth-gate", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(blank.get(), kGateBytes), 0);
    EXPECT_EQ(GateWatcher::open(blank, 1).error().code, ErrorCode::kCorrupt);
    ASSERT_EQ(::fcntl(blank.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    EXPECT_EQ(GateWatcher::open(blank, 1).error().code, ErrorCode::kMismatch);
    EXPECT_EQ(adopt_gate_page(std::move(blank)).error().code, ErrorCode::kMismatch);
}

} // namespace
} // namespace berth
