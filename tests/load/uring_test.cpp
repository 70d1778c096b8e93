// SPDX-License-Identifier: Apache-2.0
// Goal: reads through a ring come back each once, with the bytes or the errno of theirs, and no
// read is under way any more when all completions have been taken. Method: a real ring; skipped
// where the kernel gives none.
#include "cache/load/uring.h"

#include "cache/load/direct_read.h"
#include "tests/load/test_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <set>
#include <vector>

namespace berth {
namespace {

using testing::first_wrong;
using testing::TestFile;

class UringTest : public ::testing::Test {
  protected:
    void SetUp() override {
        auto made = Uring::create(8);
        if (!made)
            GTEST_SKIP() << made.error().message;
        ring_ = std::move(*made);
    }
    std::unique_ptr<Uring> ring_;
};

TEST_F(UringTest, EveryReadComesBackOnceWithItsBytes) {
    TestFile file(TestFile::Where::kMemory, 1 << 20);
    std::vector<std::byte> into(1 << 20);
    // More in all than the ring holds, so that its indices wrap.
    constexpr size_t kPiece = 4096;
    std::set<uint64_t> back;
    size_t next = 0;
    while (back.size() < into.size() / kPiece) {
        while (next < into.size() / kPiece && ring_->in_flight() < ring_->depth()) {
            ring_->add_read(file.fd(), next * kPiece, {into.data() + next * kPiece, kPiece}, next);
            ++next;
        }
        ring_->wait();
        while (auto done = ring_->take()) {
            EXPECT_EQ(done->result, static_cast<int>(kPiece));
            EXPECT_TRUE(back.insert(done->tag).second) << done->tag << " came back twice";
        }
    }
    EXPECT_EQ(ring_->in_flight(), 0U);
    EXPECT_FALSE(ring_->take());
    EXPECT_EQ(first_wrong(into, 0), std::nullopt);
}

TEST_F(UringTest, AReadThatFailsBringsItsErrno) {
    std::vector<std::byte> into(4096);
    ring_->add_read(-1, 0, into, 7);
    ring_->wait();
    auto done = ring_->take();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->tag, 7U);
    EXPECT_EQ(done->result, -EBADF);
    EXPECT_EQ(ring_->in_flight(), 0U);
}

TEST_F(UringTest, ARangeEndsWhereTheFileEnds) {
    uint64_t bytes = 3 * kDirectPieceBytes + 5000;
    TestFile file(TestFile::Where::kMemory, bytes);
    std::vector<std::byte> into(6 * kDirectPieceBytes);
    auto got = read_direct(*ring_, file.fd(), 4096, into);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, bytes - 4096);
    EXPECT_EQ(first_wrong(std::span(into).first(*got), 4096), std::nullopt);
}

TEST_F(UringTest, AnErrorInOnePieceEndsTheRangeAndLeavesNothingUnderWay) {
    std::vector<std::byte> into(20 * kDirectPieceBytes);
    auto got = read_direct(*ring_, -1, 8192, into);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().source, EBADF);
    EXPECT_THAT(got.error().message, ::testing::HasSubstr("at offset 8192"));
    EXPECT_EQ(ring_->in_flight(), 0U);
}

// Every call into the ring is put off, for ever. In a child: a filter cannot be taken away again.
bool put_every_call_off() {
    std::array<sock_filter, 4> program = {{
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_io_uring_enter},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | (EAGAIN & SECCOMP_RET_DATA)},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    }};
    sock_fprog filter{program.size(), program.data()};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(UringTest, AKernelThatPutsReadsOffForEverCostsAnErrorAndNoEndlessWait) {
    constexpr int kNoFilter = 77;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        auto ring = Uring::create(8); // the other's memory is not a child's
        if (!ring || !put_every_call_off())
            ::_exit(kNoFilter);
        ::alarm(60); // ends an endless wait
        std::vector<std::byte> into(2 * 4096);
        for (uint64_t tag = 0; tag < 2; ++tag)
            (*ring)->add_read(-1, 0, {into.data() + tag * 4096, 4096}, tag);
        int back = 0;
        bool right = true;
        while ((*ring)->in_flight() > 0 && right) {
            (*ring)->wait();
            while (auto done = (*ring)->take()) {
                ++back;
                right = right && done->result == -EAGAIN;
            }
        }
        ::_exit(right && back == 2 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilter)
        GTEST_SKIP() << "no filter may be set here";
    EXPECT_EQ(status, 0);
}

} // namespace
} // namespace berth
